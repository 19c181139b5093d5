"""Knows sums over rows by the graph of gradients, and changed gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

# What of a sum is left by these is a sum.
_TERMS = (
    *("AddBackward", "SubBackward", "RsubBackward", "NegBackward"),
    "MulBackward",
    *("ToCopyBackward", "CloneBackward", "AliasBackward", "ViewBackward"),
    *("StackBackward", "SqueezeBackward", "UnsqueezeBackward"),
)
# Names of functions and methods, without underscores. What is made by others is
# linear if one operand alone comes from gradients.
_CURVED = frozenset(
    "norm vector_norm matrix_norm normalize renorm sqrt rsqrt square sign sgn "
    "abs absolute clamp clamp_min clamp_max clip min max minimum maximum amin "
    "amax pow rpow ipow tanh round where nan_to_num reciprocal rtruediv exp "
    "log".split()
)
_OF_TWO = frozenset(
    "mul multiply imul rmul div divide true_divide truediv itruediv matmul mm "
    "dot vdot".split()
)
_LINEAR, _CHANGED = 1, 2


def sums_of_rows(loss: Any, data: list[Any], known: Iterable[Any]) -> set[str]:
    """See `Backend.sums_of_rows`."""
    parts = [x for x in data if isinstance(x, torch.Tensor)]
    rows = {x.shape[0] for x in parts}
    seen = {x.grad_fn for x in known}
    found: set[str] = set()
    ahead = [(loss.grad_fn, "sum")]
    while ahead:
        node, of_sum = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__.rstrip("0123456789")
        inner = [each for each, _ in node.next_functions]
        # A product of two values of the batch is no term.
        if kind in _TERMS and (kind != "MulBackward" or None in inner):
            ahead += [(each, of_sum) for each in inner]
        elif kind == "DivBackward" and _divides_by_values(node, rows):
            ahead.append((inner[0], "ratio"))
        elif kind == "SumBackward":
            shape = node._saved_self_sym_sizes
            axes = getattr(node, "_saved_dim", None) or range(len(shape))
            over = [axis % (1 << 64) for axis in axes]  # -1 is stored unsigned
            is_of_parts = inner[0].name().startswith("StackBackward")
            if 0 in over and shape and shape[0] in rows and not is_of_parts:
                if not _is_penalty(node, shape):
                    found.add(of_sum)
            else:
                ahead += [(each, of_sum) for each in inner]
    return found


def _divides_by_values(node: Any, rows: set[int]) -> bool:
    """Whether a division is by a tensor, and not by a number of rows."""
    divisor = node._saved_other
    # A number of Python is kept as a float64.
    if divisor.ndim or divisor.dtype != torch.get_default_dtype():
        return False
    return not any(n and float(divisor) % n == 0 for n in rows)


def _is_penalty(node: Any, shape: torch.Size) -> bool:
    """Whether a sum is one of values that one weight alone decides."""
    while not hasattr(node, "variable"):
        inner = {each for each, _ in node.next_functions if each is not None}
        if len(inner) != 1:
            return False
        (node,) = inner
    return bool(node.variable.shape == shape)


class GradientWatch:
    """Knows which memory holds what is made of gradients, and how."""

    def __init__(self) -> None:
        self._states: dict[int, int] = {}

    def see(self, function: Any, args: Any, result: Any) -> None:
        """Looks at a call of torch in a step."""
        raw = function.__name__
        if raw == "backward":
            self._states.clear()  # memory is used again
        elif getattr(function, "__self__", None) is torch.Tensor.grad:
            if raw == "__get__":
                for place in _places([result]):
                    self._states.setdefault(place, _LINEAR)
        elif self._states:
            inputs = [self._state([each]) for each in args]
            if any(inputs):
                is_in_place = raw.endswith("_") and not raw.endswith("__")
                is_in_place |= raw.startswith("__i")
                changed = args[0] if is_in_place else result
                state = _state_of_call(raw, inputs)
                self._states.update(dict.fromkeys(_places([changed]), state))

    def has_changed(self, gradients: list[Any]) -> bool:
        return self._state(gradients) == _CHANGED

    def _state(self, values: list[Any]) -> int:
        return max((self._states.get(p, 0) for p in _places(values)), default=0)


def _state_of_call(raw: str, inputs: list[int]) -> int:
    name = raw.strip("_").removeprefix("foreach_").removeprefix("linalg_")
    is_product = name in _OF_TWO and len(inputs) > 1 and inputs[1]
    # A gradient times what is none is linear, on either side of it.
    if name in _CURVED or (is_product and (inputs[0] or "div" in name)):
        return _CHANGED
    return max(inputs)


def _places(values: list[Any]) -> list[int]:
    """Returns where tensors, and those in lists, begin."""
    places = []
    for each in values:
        if isinstance(each, list | tuple):
            places += _places(list(each))
        elif isinstance(each, torch.Tensor) and each.layout == torch.strided:
            # While a compiler follows the step, its tensors have no memory.
            with contextlib.suppress(RuntimeError):
                places.append(each.data_ptr())
    return [place for place in places if place]


def are_changed(gradients: list[Any], own: list[Any]) -> bool:
    """See `Backend.are_changed`."""
    return any(watch.has_changed(gradients) for watch in own)
