"""Knows a loss that adds up rows by the graph of gradients of torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# What of a sum is left by these is a sum.
_TERMS = (
    *("AddBackward", "SubBackward", "NegBackward", "MulBackward"),
    *("ToCopyBackward", "CloneBackward", "AliasBackward", "ViewBackward"),
    *("StackBackward", "SqueezeBackward", "UnsqueezeBackward"),
)


def adds_up_rows(loss: Any, data: list[Any], known: Iterable[Any]) -> bool:
    """See `Backend.adds_up_rows`."""
    parts = [x for x in data if isinstance(x, torch.Tensor)]
    rows = {x.shape[0] for x in parts}
    seen = {x.grad_fn for x in known}
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__.rstrip("0123456789")
        inner = [each for each, _ in node.next_functions]
        # A product of two values of the batch is no term.
        if kind in _TERMS and (kind != "MulBackward" or None in inner):
            ahead += inner
        elif kind == "SumBackward":
            shape = node._saved_self_sym_sizes
            axes = getattr(node, "_saved_dim", None) or range(len(shape))
            over = [axis % (1 << 64) for axis in axes]  # -1 is stored unsigned
            is_of_parts = inner[0].name().startswith("StackBackward")
            if 0 in over and shape and shape[0] in rows and not is_of_parts:
                if not _is_penalty(node, shape):
                    return True
            else:
                ahead += inner
    return False


def _is_penalty(node: Any, shape: torch.Size) -> bool:
    """Whether a sum is one of values that one weight alone decides."""
    while not hasattr(node, "variable"):
        inner = {each for each, _ in node.next_functions if each is not None}
        if len(inner) != 1:
            return False
        (node,) = inner
    return bool(node.variable.shape == shape)
