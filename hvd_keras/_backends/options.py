"""Options of reductions, which DistributedOptimizer and the tape share."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hvd_keras._keras.names import identity_of
from hvd_keras.compression import Compression, Compressor, to_compressor
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp, Sum


class VariableGroups:
    """Lists of variables whose gradients are reduced as one.

    Variables are told apart by identity, because `==` compares their values. A
    Keras variable and the TensorFlow variable in it count as the same.
    """

    def __init__(self, lists: Iterable[Iterable[Any]]) -> None:
        self.lists = tuple(tuple(members) for members in lists)
        self._ids = tuple(frozenset(map(id, list_)) for list_ in self.lists)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.lists)

    def numbers(self) -> dict[int, int]:
        """Maps each variable's `identity_of` to the index of its list."""
        return {
            identity_of(variable): number
            for number, members in enumerate(self.lists)
            for variable in members
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableGroups):
            return NotImplemented
        return self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)

    def __repr__(self) -> str:
        return str([[path_of(v) for v in members] for members in self.lists])


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """How to reduce gradients; the same on all ranks of the process set."""

    op: ReduceOp = Average
    compression: type[Compressor] | Compressor = Compression.none
    sparse_as_dense: bool = False
    merge_slices: bool = False
    gradient_predivide_factor: float = 1.0
    groups: int | VariableGroups | None = None  # None: use HVD_BUCKET_BYTES
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""

    @classmethod
    def checked(
        cls,
        *,
        op: Any,
        groups: Any,
        num_groups: Any,
        gradient_predivide_factor: Any,
        compression: Any,
        process_set: Any,
        **others: Any,
    ) -> ReduceOptions:
        """Makes options from a user's arguments, which it checks.

        Raises:
            ValueError: A value is invalid, or two arguments contradict.
            TypeError: An argument has the wrong type.
        """
        _check_op(op)
        _check_predivide(gradient_predivide_factor, op)
        if not isinstance(process_set, ProcessSet):
            raise TypeError(
                "`process_set` must be a ProcessSet. Received: "
                f"process_set={process_set!r}."
            )
        return cls(
            op=ReduceOp(op),
            compression=to_compressor(compression),
            gradient_predivide_factor=float(gradient_predivide_factor),
            groups=_to_groups(groups, num_groups),
            process_set=process_set,
            **others,
        )


def path_of(variable: Any) -> str:
    """The name of a variable of Keras or TensorFlow, for messages."""
    return str(getattr(variable, "path", getattr(variable, "name", "?")))


def _check_op(op: Any) -> None:
    is_int = isinstance(op, int) and not isinstance(op, bool)
    if not is_int or op not in (Average, Sum, Adasum):
        raise ValueError(
            "`op` must be Average, Sum or Adasum to reduce gradients. "
            f"Received: op={op!r}."
        )


def _check_predivide(factor: Any, op: Any) -> None:
    try:
        is_number = math.isfinite(float(factor)) and float(factor) > 0
    except (TypeError, ValueError):
        is_number = False
    if not is_number:
        raise ValueError(
            "`gradient_predivide_factor` must be a positive number. Received: "
            f"gradient_predivide_factor={factor!r}."
        )
    if float(factor) != 1.0 and op != Average:
        raise ValueError(
            "`gradient_predivide_factor` must be 1 unless `op` is Average: it "
            "moves part of the division before the sum. Received: "
            f"gradient_predivide_factor={factor!r}, op={op!r}."
        )


def _to_groups(groups: Any, num_groups: Any) -> int | VariableGroups | None:
    if type(num_groups) is not int or num_groups < 0:
        raise ValueError(
            "`num_groups` must be an integer >= 0. Received: "
            f"num_groups={num_groups!r}."
        )
    if num_groups:
        if groups is not None:
            raise ValueError(
                "`groups` and its old name `num_groups` exclude each other. "
                f"Received: groups={groups!r}, num_groups={num_groups}."
            )
        groups = num_groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 1:
            raise ValueError(
                f"`groups` must be 1 or more. Received: groups={groups}."
            )
        return groups
    if not isinstance(groups, list | tuple) or not all(
        isinstance(members, list | tuple) for members in groups
    ):
        raise ValueError(
            "`groups` must be a number of groups, or a list of lists of "
            f"variables. Received: groups={groups!r}."
        )
    _check_lists(groups)
    return VariableGroups(groups)


def _check_lists(lists: Sequence[Sequence[Any]]) -> None:
    seen: set[int] = set()
    for variable in (variable for members in lists for variable in members):
        if not hasattr(variable, "assign"):
            raise ValueError(
                "The lists in `groups` must hold variables. Received: "
                f"{type(variable).__name__} in a list."
            )
        if identity_of(variable) in seen:
            raise ValueError(
                "`groups` must hold each variable once. Received: "
                f"{path_of(variable)!r} twice."
            )
        seen.add(identity_of(variable))
