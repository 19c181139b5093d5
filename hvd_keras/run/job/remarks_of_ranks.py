"""What ranks have told hvdrun's user to read when the job has ended."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Container, Iterator

from hvd_keras._common.remarks import Remark
from hvd_keras._common.terminal import one_line
from hvd_keras._rendezvous.protocol import Report

_MOST = 16  # of a job
_MOST_OF_SEVERAL = 4096  # which count once several ranks have made them
_MOST_NAMED = 8
# Rounding may let weights differ so far, on machines of several kinds.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6
_Value = float | str


class RemarksOfRanks:
    """Keeps each remark once, with the ranks that have made it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Remark, set[int]]] = {}
        self._values: dict[str, dict[int, list[_Value]]] = {}
        self._room = {False: _MOST, True: _MOST_OF_SEVERAL}

    def note(self, told: Report) -> None:
        """Notes what a rank has told."""
        try:
            remark = Remark.of_packed(told.text)
        except ValueError:  # of another version
            return
        if remark.value:
            try:
                values = json.loads(remark.value)
                values = [v if isinstance(v, str) else float(v) for v in values]
            except (TypeError, ValueError):
                return
            self._values.setdefault(remark.about, {})[told.rank] = values
        if remark.about not in self._kept:
            is_of_several = remark.fewest > 1
            if not self._room[is_of_several]:
                return
            self._room[is_of_several] -= 1
            self._kept[remark.about] = remark, set()
        known, ranks = self._kept[remark.about]
        ranks.add(told.rank)
        if not known.text:
            self._kept[remark.about] = remark, ranks

    def __bool__(self) -> bool:
        return any(self.lines())

    def lines(self, among: Container[int] | None = None) -> Iterator[str]:
        """Yields what to say, one line for each.

        Args:
            among: The ranks whose remarks count; None: all.
        """
        counting = (
            (one, named)
            for one, ranks in self._kept.values()
            if one.text
            and len(ranks) >= one.fewest
            and (named := [n for n in sorted(ranks) if not among or n in among])
        )
        for remark, ranks in itertools.islice(counting, _MOST):
            text = one_line(remark.text)
            if remark.about in self._values:
                difference = _difference(self._values[remark.about])
                if not difference:
                    continue
                text += f": {difference}."
            numbers = ", ".join(map(str, ranks[:_MOST_NAMED]))
            more = " and others" if len(ranks) > _MOST_NAMED else ""
            who = f"rank{'s' * (len(ranks) > 1)} {numbers}{more}"
            yield f"warning of {who}: {text}"


def _difference(values: dict[int, list[_Value]]) -> str:
    """Says in which value ranks differ more than by rounding; "": in none."""
    (first, known), *others = sorted(values.items())
    for rank, theirs in others:
        for mine, other in zip(known, theirs, strict=False):
            if mine == other or "" in (mine, other):
                continue
            if isinstance(mine, str) or isinstance(other, str):
                here, there = _words(mine), _words(other)
                return f"{here} on rank {first}, {there} on rank {rank}"
            largest = max(abs(mine), abs(other))
            are_close = abs(mine - other) <= _RELATIVE * largest + _ABSOLUTE
            are_unknown = math.isnan(mine) and math.isnan(other)
            if not (are_close or are_unknown):
                return (
                    f"one is {mine:.6g} on rank {first}, {other:.6g} on rank "
                    f"{rank}"
                )
    return ""


def _words(value: _Value) -> str:
    return str(value).partition(" ")[2]
