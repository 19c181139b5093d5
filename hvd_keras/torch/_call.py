"""The one function that every collective on torch tensors goes through."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras import _native
from hvd_keras._common.dtypes import check_dtype
from hvd_keras._common.frameworks import dtype_of
from hvd_keras._values import calls, refusals
from hvd_keras._values.calls import checked_name, checked_reduction
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, ReduceOp, Sum
from hvd_keras.torch._memory import as_array, as_tensor

LINEAR = (Average, Sum)


@dataclasses.dataclass(frozen=True)
class Call:
    """What a call and its gradient have in common."""

    name: str
    process_set: ProcessSet

    @property
    def set_id(self) -> int:
        return self.process_set.process_set_id or 0

    @property
    def index(self) -> int:
        """The place of this rank in the set."""
        return self.process_set.rank() or 0

    @property
    def size(self) -> int:
        return self.process_set.size() or 1

    def part(self, name: str) -> Call:
        """The call of one of the collectives in the gradient."""
        return Call(f"{self.name}/{name}", self.process_set)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The checked arguments of a reduction."""

    op: int
    prescale: float = 1.0
    postscale: float = 1.0

    @property
    def factor(self) -> float:
        return self.prescale * self.postscale


def checked_call(
    kind: str, tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> Call:
    """Returns the call that has `name`, or a count of the nameless calls.

    Raises:
        InvalidArgumentError: `name` or `process_set` cannot be used, or
            `tensors` holds something else.
    """
    own = checked_name(f"torch.{kind}", kind, name, process_set)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                "A tensor must be a `torch.Tensor`. Received: "
                f"{type(tensor).__name__} ({kind} {own!r})."
            )
    return Call(own, process_set)


def reduction(
    op: Any, prescale_factor: float, postscale_factor: float
) -> Reduction:
    """Returns the checked arguments of a reduction; `op` None is `Average`."""
    return Reduction(*checked_reduction(op, prescale_factor, postscale_factor))


def check_has_rows(kind: str, tensor: torch.Tensor, call: Call) -> None:
    """Raises InvalidArgumentError for a scalar."""
    if tensor.ndim == 0:
        raise InvalidArgumentError(
            "`tensor` must have one dimension or more. Received: a scalar "
            f"({kind} {call.name!r})."
        )


def run(
    kind: str, tensors: Sequence[torch.Tensor], call: Call, *arguments: Any
) -> list[torch.Tensor]:
    """Runs a collective on host memory; it has no gradient.

    Args:
        kind: "allreduce", "reducescatter", "broadcast" or "allgather".
        tensors: One tensor, or the members of a group.
        call: Pairs the call across ranks.
        *arguments: A `Reduction`, or the root rank of a broadcast.

    Raises:
        InvalidArgumentError: The collective does not take the dtype of a
            tensor.
    """
    core = _native.core()
    arrays = to_arrays(kind, tensors, call)
    if kind in ("allreduce", "reducescatter"):
        (how,) = arguments
        arguments = (how.op, how.prescale, how.postscale)
    refusals.submit()
    results = getattr(core, kind)(call.name, arrays, *arguments, call.set_id)
    return [
        as_tensor(result).to(tensor.device)
        for result, tensor in zip(results, tensors, strict=True)
    ]


def to_arrays(
    kind: str, tensors: Sequence[torch.Tensor], call: Call
) -> list[Any]:
    """Returns the tensors as arrays; raises if their dtypes do not fit."""
    for tensor in tensors:
        check_dtype(dtype_of(tensor), kind, call.name)
    return [as_array(each.detach().cpu().contiguous()) for each in tensors]


barrier = torch.compiler.disable(calls.barrier)


def refuse_gradient(kind: str, op: int, call: Call) -> None:
    """Raises NotImplementedError for `Adasum`."""
    if op == ReduceOp.Adasum:
        raise NotImplementedError(
            f"`{kind}` must be a Sum, an Average, a Min, a Max or a Product "
            f"to be differentiated. Received: op=Adasum ({call.name!r})."
        )
