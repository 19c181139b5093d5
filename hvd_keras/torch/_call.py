"""The one function that every collective on torch tensors goes through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_keras import _native
from hvd_keras._common.dtypes import check_dtype
from hvd_keras._common.frameworks import dtype_of
from hvd_keras._values import refusals
from hvd_keras._values.calls import checked_name, checked_reduction
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, ReduceOp, Sum
from hvd_keras.torch._memory import as_array, in_memory_of

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
    wire_format: int = 0

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


def checked_group(
    kind: str, tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> Call:
    """As `checked_call`; raises InvalidArgumentError for no tensors too."""
    call = checked_call(kind, tensors, name, process_set)
    if not tensors:
        raise InvalidArgumentError(
            "`tensors` must hold one or more tensors. Received: an empty list "
            f"(name {name!r})."
        )
    return call


def reduction(
    op: Any,
    prescale_factor: float,
    postscale_factor: float,
    wire_format: int = 0,
) -> Reduction:
    """Returns the checked arguments of a reduction; `op` None is `Average`."""
    checked = checked_reduction(op, prescale_factor, postscale_factor)
    return Reduction(*checked, wire_format)


def check_have_rows(
    kind: str, tensors: Sequence[torch.Tensor], call: Call
) -> None:
    """Raises InvalidArgumentError if there is a scalar."""
    if any(tensor.ndim == 0 for tensor in tensors):
        raise InvalidArgumentError(
            "`tensor` must have one dimension or more. Received: a scalar "
            f"({kind} {call.name!r})."
        )


def run(
    kind: str, tensors: Sequence[torch.Tensor], call: Call, **options: Any
) -> list[torch.Tensor]:
    """Runs a collective on host memory, as `begin` does, and waits."""
    results: list[torch.Tensor] = begin(kind, tensors, call, **options).wait()
    return results


def begin(
    kind: str,
    tensors: Sequence[torch.Tensor],
    call: Call,
    *,
    how: Reduction | None = None,
    root_rank: int = 0,
    splits: list[int] | None = None,
    in_place: bool = False,
    then: Callable[[list[torch.Tensor]], Any] | None = None,
) -> Handle:
    """Begins a collective on host memory; it has no gradient.

    Args:
        kind: The collective.
        tensors: One tensor, or the members of a group.
        call: Pairs the call across ranks.
        how: Of reductions.
        root_rank: Of a broadcast.
        splits: Of an alltoall.
        in_place: Whether the results of an allreduce or a broadcast replace
            the tensors.
        then: Makes of the results what the handle returns. None: the results.

    Raises:
        InvalidArgumentError: The collective does not take the dtype of a
            tensor.
    """
    core = _native.core()
    members = on_host(kind, tensors, call)
    options: dict[str, Any] = {}
    if how is not None:
        options.update(
            op=how.op,
            prescale=how.prescale,
            postscale=how.postscale,
            wire_format=how.wire_format,
        )
    refusals.submit()
    submitted = core.submit(
        kind,
        call.name,
        [as_array(member) for member in members],
        root_rank=root_rank,
        splits=splits,
        process_set_id=call.set_id,
        in_place=in_place,
        **options,
    )
    if in_place:
        return Handle(submitted, lambda _: _written(tensors, members), then)
    return Handle(
        submitted,
        lambda arrays: [
            in_memory_of(array).to(tensor.device)
            for array, tensor in zip(arrays, tensors, strict=True)
        ],
        then,
    )


class Handle:
    """A collective that has begun; see `synchronize`."""

    def __init__(
        self,
        call: Any,
        convert: Callable[[list[Any]], list[torch.Tensor]],
        then: Callable[[list[torch.Tensor]], Any] | None,
    ) -> None:
        self._call: Any = call
        self._convert: Any = convert
        self._then: Any = then
        self._result: Any = None

    @property
    def is_done(self) -> bool:
        """Whether the collective has ended."""
        return self._call is None or bool(self._call.is_done)

    @property
    def received(self) -> list[int]:
        """Of an alltoall that has ended: how many rows each rank has sent."""
        received: list[int] = self._call.received
        return received

    def then(self, convert: Callable[[Any], Any]) -> Handle:
        """Returns this handle, whose result `convert` makes of the former."""
        former = self._then
        self._then = lambda results: convert(former(results))
        return self

    def wait(self) -> Any:
        """Returns the result, when the collective has ended; or raises."""
        if self._call is not None:
            results = self._convert(self._call.wait())
            self._result = self._then(results) if self._then else results
            self._call = self._convert = self._then = None  # have tensors
        return self._result


def first(results: list[torch.Tensor]) -> torch.Tensor:
    """Returns the result of a collective on one tensor."""
    return results[0]


def _written(
    tensors: Sequence[torch.Tensor], members: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Returns `tensors`, with the values of `members`."""
    for tensor, member in zip(tensors, members, strict=True):
        if tensor.data_ptr() != member.data_ptr():
            with torch.no_grad():
                tensor.copy_(member)
        elif not tensor.is_inference():
            # Autograd has not seen that the values are others now.
            torch.autograd.graph.increment_version(tensor)
    return list(tensors)


def on_host(
    kind: str, tensors: Sequence[torch.Tensor], call: Call
) -> list[torch.Tensor]:
    """Returns the tensors as contiguous ones in host memory.

    Raises:
        InvalidArgumentError: The collective does not take a dtype.
    """
    for tensor in tensors:
        check_dtype(dtype_of(tensor), kind, call.name)
    return [each.detach().cpu().contiguous() for each in tensors]


def refuse_gradient(kind: str, op: int, call: Call) -> None:
    """Raises NotImplementedError for `Adasum`."""
    if op == ReduceOp.Adasum:
        raise NotImplementedError(
            f"`{kind}` must be a Sum, an Average, a Min, a Max or a Product "
            f"to be differentiated. Received: op=Adasum ({call.name!r})."
        )
