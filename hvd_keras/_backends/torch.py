"""torch: plain calls of the engine, on the memory of the tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hvd_keras import _native
from hvd_keras._backends.interface import Array, Backend
from hvd_keras._backends.options import ReduceOptions
from hvd_keras._backends.products import are_paired, is_of_rows, rows_of
from hvd_keras._backends.torch_sums import (
    GradientWatch,
    are_changed,
    sums_of_rows,
)
from hvd_keras._common.dtypes import check_dtype
from hvd_keras._common.frameworks import dtype_of
from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._keras import torch as keras_torch
from hvd_keras._keras.steps import running_batch
from hvd_keras.compression import wire_format_of
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Min, Sum
from hvd_keras.torch._memory import (
    as_array,
    as_tensor,
    in_memory_of_their_own,
)
from hvd_keras.torch.allreduce import allreduce

# An einsum tells rows from features by its letters: it is not looked at.
_PRODUCTS = (
    *(torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm),
    *(torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.tensordot),
    torch.cdist,
)
# Names of functions and methods, without underscores.
_OF_PAIRS = frozenset(
    "add radd sub subtract rsub mul multiply rmul div divide true_divide "
    "truediv rtruediv maximum minimum eq ne gt ge lt le".split()
)

# Gradients of what casts or turns a weight. A lookup in one gives rows.
_OF_WHOLE_WEIGHTS = (
    *("ToCopyBackward", "TBackward", "TransposeBackward", "PermuteBackward"),
    *("ViewBackward", "ReshapeAliasBackward", "AliasBackward"),
)


class TorchBackend(Backend):
    """Adapts torch."""

    traces = False

    def to_dense(self, gradient: Any) -> torch.Tensor:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        name: str,
        options: ReduceOptions,
        postscale: float,
        seal: tuple[int, ...] | None = None,
    ) -> list[torch.Tensor]:
        for tensor in tensors:
            check_dtype(dtype_of(tensor), "allreduce", name)
        members = in_memory_of_their_own(
            [tensor.detach() for tensor in tensors]
        )
        arrays = [as_array(member) for member in members]
        if seal is not None:
            arrays.append(np.zeros(seal, np.uint8))
        _native.core().allreduce(
            name,
            arrays,
            int(options.op),
            1.0 / options.gradient_predivide_factor,
            postscale,
            options.process_set.process_set_id or 0,
            in_place=True,
            wire_format=wire_format_of(options.compression),
        )
        return [
            member.to(tensor.device)
            for member, tensor in zip(members, tensors, strict=True)
        ]

    @uncompiled
    def reduce_if(
        self,
        condition: Any,
        reduce: Callable[[list[Any]], list[Any]],
        gradients: list[Any],
    ) -> list[Any]:
        return reduce(gradients)

    @uncompiled
    def mean_over_ranks(
        self,
        value: Any,
        name: str,
        process_set: ProcessSet,
        chain: list[Any],
    ) -> torch.Tensor:
        mine = value.detach().cpu().numpy()
        (mean,) = _native.core().allreduce(
            name,
            [mine],
            int(Average),
            1.0,
            1.0,
            process_set.process_set_id or 0,
        )
        return torch.from_numpy(mean).to(value.device)

    @uncompiled
    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        mine = np.array(int(flag), np.int32)
        (everywhere,) = _native.core().allreduce(
            name, [mine], int(Min), 1.0, 1.0, process_set.process_set_id or 0
        )
        return torch.tensor(bool(everywhere))

    @uncompiled
    def sum(self, tensor: Any, name: str, process_set: ProcessSet) -> Any:
        mine = tensor.detach().cpu().numpy()
        (total,) = _native.core().allreduce(
            name, [mine], int(Sum), 1.0, 1.0, process_set.process_set_id or 0
        )
        return torch.from_numpy(np.asarray(total))

    # A compiler that follows `name` may count a layer twice.
    @uncompiled
    def sum_in_layer(
        self, tensor: Any, name: Callable[[], str], process_set: ProcessSet
    ) -> torch.Tensor:
        # Each call has ended before the next one begins.
        return allreduce(tensor, Sum, name=name(), process_set=process_set)

    def read(self, variable: Any) -> Array:
        return as_array(variable.value.detach().cpu().contiguous())

    def assign(self, variable: Any, value: Array) -> None:
        target = variable.value
        with torch.no_grad():
            target.copy_(as_tensor(value))

    def products_of_rows(
        self, data: list[Any], found: list[str]
    ) -> contextlib.AbstractContextManager[Any]:
        parts = [x for x in data if isinstance(x, torch.Tensor)]
        rows = rows_of(x.shape for x in parts)
        if not rows:
            return contextlib.nullcontext()
        return _Products(parts, rows, found)

    sums_of_rows = staticmethod(sums_of_rows)
    are_changed = staticmethod(are_changed)

    def held(self, value: Any) -> Array | None:
        if isinstance(value, torch.Tensor) and not value.is_meta:
            return as_array(value.detach().cpu().contiguous())
        return super().held(value)

    def random_state(self) -> Array:
        # Keras drops out with torch's own generators, unless the layer has a
        # seed.
        states = [torch.get_rng_state()]
        if torch.cuda.is_available():
            states.append(torch.cuda.get_rng_state())
        return as_array(torch.cat(states))

    def set_random_state(self, state: Array) -> None:
        states = as_tensor(np.array(state))  # torch wants memory of its own
        size = torch.get_rng_state().numel()
        torch.set_rng_state(states[:size])
        if torch.cuda.is_available() and states.numel() > size:
            torch.cuda.set_rng_state(states[size:])

    def keep_from_averaging(self, averages: Callable[[Any], bool]) -> None:
        keras_torch.keep_from_averaging(averages)


class _Products(TorchFunctionMode):
    """Finds products of rows by rows while it is entered."""

    def __init__(
        self, data: list[Any], rows: set[int | None], found: list[str]
    ) -> None:
        super().__init__()
        self._rows, self._found = rows, found
        self._gradients = GradientWatch()
        self._of_batch: Any = WeakIdKeyDictionary(dict.fromkeys(data, True))

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        batch = running_batch()
        # A step of another model, inside of this one, may have none.
        has_loss = function is torch.Tensor.backward and batch is not None
        if has_loss:
            if not batch.has_weight:
                batch.look_for_sums(args[0])
            batch.gradients[:] = [self._gradients]
        result = function(*args, **(kwargs or {}))
        self._gradients.see(function, args, result)
        given = [*args, *(kwargs or {}).values()]
        if any(each in self._of_batch for each in _tensors_in(given)):
            self._of_batch.update(dict.fromkeys(_tensors_in([result]), True))
        factors = given[:2]
        if self._is_of_pairs(function, factors) or (
            function in _PRODUCTS
            # Over which axes it sums is not looked at, unless over all.
            and (function is not torch.tensordot or result.ndim == 0)
            and self._has_shape_of_rows(factors[0], result)
            and not any(map(self._is_weight, factors))
            and not any(map(_is_gathered, factors))
        ):
            self._found.append(f"values of shape {tuple(result.shape)}")
        return result

    def _is_of_pairs(self, function: Any, factors: list[Any]) -> bool:
        return (
            getattr(function, "__name__", "").strip("_") in _OF_PAIRS
            and len(factors) == 2
            # Places of a row are compared too, for a mask for example.
            and len(_tensors_in(factors)) == 2
            and all(each in self._of_batch for each in factors)
            and are_paired(factors[0].shape, factors[1].shape, self._rows)
            and not any(map(_is_gathered, factors))
        )

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter, or one that was cast or transposed.

        Those that are frozen have no gradient that tells.
        """
        if isinstance(tensor, torch.nn.Parameter):
            return True
        node = tensor.grad_fn
        while type(node).__name__.rstrip("0") in _OF_WHOLE_WEIGHTS:
            node = node.next_functions[0][0]
        if node is None:
            return tensor not in self._of_batch
        return type(node).__name__ == "AccumulateGrad"

    def _has_shape_of_rows(self, first: Any, result: torch.Tensor) -> bool:
        contracted = first.shape[-1] if result.ndim else first.numel()
        return is_of_rows(result.shape, contracted, self._rows)


def _tensors_in(values: list[Any]) -> list[torch.Tensor]:
    flat = [
        part
        for each in values
        for part in (each if isinstance(each, list | tuple) else [each])
    ]
    return [part for part in flat if isinstance(part, torch.Tensor)]


def _is_gathered(tensor: torch.Tensor) -> bool:
    """Whether a tensor depends on the rows of all ranks."""
    seen: set[Any] = set()
    ahead = [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "_GatheredBackward":
            return True
        ahead += [each for each, _ in node.next_functions]
    return False


BACKEND = TorchBackend()
