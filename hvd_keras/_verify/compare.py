"""Compares the records of N ranks and of one process, and says the result.

Usage: python -m hvd_keras._verify.compare FOLDER [--json]

The exit status is 0 if they are equal, 1 if they differ, 2 if there is too
little to compare, and 3, without a word, if one more run must first measure
what rounding does.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvd_keras._common.terminal import printable
from hvd_keras._verify import causes
from hvd_keras._verify.causes import Difference, Facts
from hvd_keras._verify.numbers import gap_of, ratio_of, several, short
from hvd_keras._verify.records import NUDGED, Event, read
from hvd_keras._verify.rounding import Rounding

# Sums in another order differ by about 1e-7 of their parts; what a training
# amplifies in a few steps usually stays far below this; `rounding` knows where
# it does not.
_TOLERANCE = 2e-4
NEEDS_NUDGED = 3  # the exit status that asks for such a run
_HALF_TOLERANCE = 3e-2  # with float16 or bfloat16
# A gradient that is this small beside the largest is the rest of a sum that is
# zero. Adam and its kin make whole steps of it.
_NOISE = 1e-5


@dataclasses.dataclass
class Verdict:
    """What a comparison found.

    Args:
        status: The exit status.
        text: A line for people.
        num_steps: Steps that were compared.
        largest: The largest difference of a weight.
        difference: The first difference.
        notes: What was made equal or left out.
        is_open: Whether one more run may show that it is rounding.
    """

    status: int
    text: str
    num_steps: int = 0
    largest: float = 0.0
    difference: Difference | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    is_open: bool = False

    def as_json(self) -> str:
        found = self.difference
        difference = {} if found is None else dataclasses.asdict(found)
        if found and not np.isfinite(found.gap):  # JSON knows no NaN
            difference["gap"] = None
        shown = {
            "status": ("equal", "differs", "not compared")[self.status],
            "text": self.text,
            "steps": self.num_steps,
            "largest_difference": self.largest,
            "notes": self.notes,
            "difference": difference or None,
        }
        return json.dumps(shown)


class Comparison:
    """Compares events in the order of the one process.

    Args:
        one: The events of the one process.
        ranks: Those of each rank.
        is_whole: Whether all scripts ran to their end. If not, what is missing
            on a side is no difference.
        nudged: Those of each run of it with nudged gradients.
    """

    def __init__(
        self,
        one: list[Event],
        ranks: list[list[Event]],
        *,
        is_whole: bool = True,
        nudged: Sequence[Sequence[Event]] = (),
    ) -> None:
        self._is_whole = is_whole
        self._one = one
        self._ranks = ranks
        self._of_ranks = [{e.place: e for e in events} for events in ranks]
        self._own = {e.place: e for e in one if e.kind == "own"}
        notes = [e for e in one if e.kind == "note"]
        told = [
            e
            for e in ranks[0]
            if e.kind == "note" and e.key in ("loss", "local_updates")
        ]
        self._facts = Facts(notes + told, len(ranks))
        half = any(e.facts.get("half") for e in notes)
        self._tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        self._rounding = Rounding(nudged, self._tolerance)
        self._noise: set[str] = set()  # variables whose gradients are that
        self._largest = 0.0
        self._num_steps = 0
        self._same_draws: Difference | None = None

    def verdict(self) -> Verdict:
        compared = [e for e in self._one if e.kind != "note"]
        if not any(e.kind == "gradients" for e in compared):
            return Verdict(
                2,
                "Not compared: the script took no step with a "
                "`DistributedOptimizer` or a `DistributedGradientTape`.",
            )
        difference = None
        for event in compared:
            self._rounding.go_on_to(event)
            difference = self._compare(event)
            if difference is not None:
                break
        # What differs otherwise goes before.
        difference = difference or self._left_over() or self._same_draws
        notes = self._facts.texts() + self._rounding.texts()
        size = len(self._ranks)
        if difference is None:
            text = (
                f"Equal to one process: {self._num_steps} steps, largest "
                f"difference {self._largest:.0e}."
            ).replace("e-0", "e-")
            return Verdict(0, text, self._num_steps, self._largest, None, notes)
        why = self._why_not_compared(difference)
        if why:
            text = (
                f"Equal to one process until step {difference.step}, and not "
                f"compared from there: {difference.text()} {why}"
            )
            return Verdict(
                2, text, self._num_steps, self._largest, difference, notes
            )
        is_open = difference.name and self._rounding.may_explain(difference)
        difference.cause = causes.cause_of(difference, self._facts)
        text = f"{size} ranks differ from one process. {difference.text()}"
        return Verdict(
            1,
            text,
            self._num_steps,
            self._largest,
            difference,
            notes,
            is_open=bool(is_open),
        )

    def _why_not_compared(self, found: Difference) -> str:
        """Says why a difference shows nothing; "": it shows a mistake."""
        if self._rounding.hides(found):
            return (
                "Rounding alone changes that as much: small changes grow here "
                "within a few steps. Rows that are all alike before a "
                "BatchNormalization do that, and large learning rates."
            )
        layers = self._facts.layers_of_alike_rows()
        if layers and found.name:
            return (
                "All rows are alike before the BatchNormalization "
                f"{layers[0]}, as random numbers are the same for each row "
                "here. It makes rounding large."
            )
        return ""

    # ---- One event ----

    def _compare(self, event: Event) -> Difference | None:
        others = [events.get(event.place) for events in self._of_ranks]
        if any(other is None for other in others):
            if not self._is_whole or event.kind == "draws":
                return None
            missing = [r for r, other in enumerate(others) if other is None]
            return self._difference(
                event, "steps", f"rank {missing[0]} took no such step", "one"
            )
        ranks = [other for other in others if other is not None]
        step = min(each.step for each in (event, *ranks))
        self._num_steps = max(self._num_steps, step)
        self._facts.note_model(event)
        compare = {
            "rows": self._rows,
            "loss": self._loss,
            "own": self._nothing,
            "draws": self._draws,
            "gradients": self._gradients,
            "weights": self._weights,
            "results": self._results,
        }[event.kind]
        return compare(event, ranks)

    def _nothing(self, event: Event, ranks: list[Event]) -> None:
        return None

    def _draws(self, event: Event, ranks: list[Event]) -> None:
        """Keeps the first generator of which ranks have equal states."""
        having: dict[int, list[int]] = {}
        for number, rank in enumerate(ranks):
            state = int(rank.arrays["state"])
            having.setdefault(state, []).append(number)
        for numbers in having.values():
            if len(numbers) > 1 and self._same_draws is None:
                self._same_draws = self._difference(
                    event,
                    f"{event.key} draws the same numbers",
                    f"on ranks {' and '.join(map(str, numbers))}",
                    "others for each row",
                )

    def _rows(self, event: Event, ranks: list[Event]) -> Difference | None:
        self._facts.note_rows(
            [_num_rows(rank) for rank in ranks], _num_rows(event)
        )
        wrong = []
        for name, rows in event.arrays.items():
            if any(name not in rank.arrays for rank in ranks):
                continue
            parts = [rank.arrays[name] for rank in ranks]
            union = collections.Counter(
                int(row) for part in parts for row in part
            )
            mine = collections.Counter(int(row) for row in rows)
            lost, more = mine - union, union - mine
            if lost or (more and not self._only_fills(mine, more)):
                wrong.append((name, lost, more))
        if not wrong:
            return None
        if len(wrong) < len(event.arrays):
            # Rows that are the same in one tensor are there.
            self._facts.note_changed([name for name, _, _ in wrong])
            return None
        name, lost, more = wrong[0]
        counts = [_num_rows(rank) for rank in ranks]
        found = self._difference(
            event,
            "rows",
            f"{' and '.join(map(str, counts))} rows on the ranks, "
            f"{sum(lost.values())} of them missing and {sum(more.values())} "
            "others",
            f"{_num_rows(event)} rows",
        )
        alike = [r.arrays[name].tolist() for r in ranks]
        found.details = {
            "same_on_ranks": all(sorted(a) == sorted(alike[0]) for a in alike),
            "num_lost": sum(lost.values()),
            "num_more": sum(more.values()),
            "seen_elsewhere": self._are_of_other_steps(name, more),
            "num_rows": counts,
            "num_rows_of_one": _num_rows(event),
            "is_subset": not lost and bool(more),
            "twice": any(
                count > 1 for count in (_rows_of(ranks, name)).values()
            ),
        }
        return found

    def _only_fills(self, mine: Any, more: Any) -> bool:
        """Whether rows that one process lacks are copies that only fill."""
        few = sum(mine.values()) < len(self._ranks)
        return few and all(row in mine for row in more)

    def _are_of_other_steps(self, name: str, rows: Any) -> bool:
        known = {
            int(row)
            for event in self._one
            if event.kind == "rows" and name in event.arrays
            for row in event.arrays[name]
        }
        return bool(rows) and all(row in known for row in rows)

    def _loss(self, event: Event, ranks: list[Event]) -> Difference | None:
        values = [rank.arrays["loss"] for rank in ranks]
        one = event.arrays["loss"]
        if any(value.shape != one.shape or value.ndim for value in values):
            return None
        rows = self._facts.rows or [1] * len(ranks)
        means = [np.mean(values), np.average(values, weights=rows or None)]
        if min(rows) == 0:
            means.append(
                np.mean([v for v, n in zip(values, rows, strict=True) if n])
            )
        if any(self._is_near(mean, one, abs(one)) for mean in means):
            return None
        share = min(gap_of(np.float64(m), one) for m in means)
        share /= max(float(np.abs(one)), 1e-2)
        if self._rounding.explains("loss", "loss", share):
            return None
        found = self._difference(
            event,
            "loss",
            f"{means[0]:.6g}, the mean of the ranks' " + several(values),
            f"{float(one):.6g}",
        )
        found.gap, found.name = share, "loss"
        found.details = {"ratio": ratio_of(means[0], one)}
        # The gradients of the step say more.
        self._facts.loss = found
        return None

    def _gradients(self, event: Event, ranks: list[Event]) -> Difference | None:
        own = [
            events[("own", event.key, event.number)]
            for events in self._of_ranks
        ]
        largest = max(
            (float(np.max(np.abs(a))) for a in event.arrays.values() if a.size),
            default=0.0,
        )
        worst: tuple[float, str] = (0.0, "")
        for name, one in event.arrays.items():
            each = [r.arrays[name] for r in ranks if name in r.arrays]
            if len(each) < len(ranks) or any(
                a.shape != one.shape for a in each
            ):
                return self._difference(
                    event,
                    f"gradient of {name}",
                    "another shape or none",
                    str(list(one.shape)),
                )
            scale = float(np.max(np.abs(one))) if one.size else 0.0
            if scale <= _NOISE * largest:
                self._noise.add(name)
            else:
                self._noise.discard(name)
            scale = max(scale, 1e-2 * largest)
            for value in each:
                gap = gap_of(value, one) / (scale or 1.0)
                if gap > worst[0] and not self._rounding.explains(
                    event.kind, name, gap
                ):
                    worst = gap, name
        if worst[0] <= self._tolerance:
            if self._facts.loss is not None:
                return self._facts.take_loss()
            return None
        found = self._wrong_gradient(event, ranks, own, worst[1])
        found.gap, found.name = worst
        return found

    def _wrong_gradient(
        self, event: Event, ranks: list[Event], own: list[Event], name: str
    ) -> Difference:
        one = event.arrays[name]
        each = [rank.arrays[name] for rank in ranks]
        rank, value = max(enumerate(each), key=lambda p: gap_of(p[1], one))
        place = int(np.argmax(np.abs(value - one)))
        found = self._difference(
            event,
            f"gradient of {name}",
            f"{value.flat[place]:.6g} on rank {rank}",
            f"{one.flat[place]:.6g}",
        )
        before = np.stack([e.arrays[name].astype(np.float64) for e in own])
        mine = self._own.get(("own", event.key, event.number))
        mean = before.mean(axis=0)
        scale = float(np.max(np.abs(mean))) or 1.0
        rows = self._facts.rows or [1] * len(ranks)
        total = sum(rows) or 1
        weighted = np.tensordot(np.array(rows) / total, before, 1)
        found.details = {
            "ratio": ratio_of(value, one),
            "ranks_differ": any(
                gap_of(a, each[0]) > 1e-5 * scale for a in each
            ),
            "is_mean": gap_of(mean, value) <= 1e-3 * scale,
            "weighted_is_right": gap_of(weighted, one) <= 1e-3 * scale,
            "own_are_equal": all(gap_of(b, before[0]) == 0 for b in before),
            "one_changed": mine is not None
            and name in mine.arrays
            and gap_of(mine.arrays[name], one) > 1e-3 * scale,
            "only": [
                other
                for other in event.arrays
                if any(
                    gap_of(r.arrays[other], event.arrays[other])
                    > self._tolerance
                    * max(float(np.max(np.abs(event.arrays[other]))), 1e-12)
                    for r in ranks
                    if other in r.arrays
                )
            ],
            "num_gradients": len(event.arrays),
            "is_table": one.ndim == 2 and "embedding" in name.lower(),
            "loss": self._facts.loss and self._facts.loss.text(),
        }
        return found

    def _weights(self, event: Event, ranks: list[Event]) -> Difference | None:
        for name, one in event.arrays.items():
            if name in self._noise or not one.size:
                continue
            for number, rank in enumerate(ranks):
                value = rank.arrays.get(name)
                if value is None or value.shape != one.shape:
                    continue
                gap = gap_of(value, one)
                scale = float(np.max(np.abs(one)))
                share = gap / max(scale, 1e-2)
                if share <= self._tolerance or self._rounding.explains(
                    event.kind, name, share
                ):
                    if event.key != "rate":
                        self._largest = max(self._largest, gap)
                    continue
                place = int(np.argmax(np.abs(value - one)))
                what = {"rate": "learning rate", "state": "state"}.get(
                    event.key.split()[0], "weight"
                )
                found = self._difference(
                    event,
                    f"{what} {name}",
                    f"{value.flat[place]:.6g} on rank {number}",
                    f"{one.flat[place]:.6g}",
                )
                found.gap, found.name = share, name
                first = ranks[0].arrays[name]
                found.details = {
                    "kind": event.key,
                    "ranks_differ": any(
                        gap_of(r.arrays[name], first) > 1e-6 * max(scale, 1e-2)
                        for r in ranks
                        if name in r.arrays
                    ),
                    "is_first": event.number == 0,
                }
                return found
        return None

    def _results(self, event: Event, ranks: list[Event]) -> Difference | None:
        for name, one in event.arrays.items():
            each = [r.arrays[name] for r in ranks if name in r.arrays]
            if not each or not one.size:
                continue
            if all(a.shape == one.shape for a in each):
                gaps = [gap_of(a, one) for a in each]
                scale = max(float(np.max(np.abs(one))), 1e-2)
            elif all(a.ndim == one.ndim for a in each) and one.ndim:
                # Each rank has its share of the rows.
                whole = np.concatenate(each).astype(np.float64)
                each = [whole.mean(axis=0)]
                one = one.astype(np.float64).mean(axis=0)
                gaps = [gap_of(each[0], one)]
                scale = max(float(np.max(np.abs(one))), 1e-2)
            else:
                gaps, scale = [float("inf")], 1.0
            share = max(gaps) / scale
            if share <= 10 * self._tolerance or self._rounding.explains(
                event.kind, name, share
            ):
                continue
            number = int(np.argmax(gaps))
            value = each[number]
            if value.shape == one.shape and one.ndim:
                place = int(np.argmax(np.abs(value - one)))
                value, one = value.flat[place], one.flat[place]
            what = {
                "fit": "metric",
                "evaluate": "metric of `evaluate`",
            }.get(event.key, f"result of `{event.key}`")
            found = self._difference(
                event,
                f"{what} {name}".rstrip(),
                f"{short(value)} on rank {number}",
                short(one),
            )
            found.gap, found.name = share, name
            found.details = {
                "kind": event.key,
                "ranks_differ": any(
                    a.shape != each[0].shape
                    or gap_of(a, each[0]) > 1e-6 * scale
                    for a in each
                ),
            }
            return found
        return None

    # ---- The rest ----

    def _left_over(self) -> Difference | None:
        if self._facts.loss is not None:
            return self._facts.take_loss()
        known = {e.place for e in self._one}
        if not self._is_whole:
            return None
        for number, events in enumerate(self._ranks):
            for event in events:
                kept = event.kind not in ("note", "draws")
                if kept and event.place not in known:
                    return self._difference(
                        event, "steps", f"rank {number} took one more", "none"
                    )
        return None

    def _is_near(self, value: Any, one: Any, scale: Any) -> bool:
        gap = float(np.abs(np.float64(value) - np.float64(one)))
        both_nan = bool(np.isnan(value) and np.isnan(one))
        return both_nan or gap <= self._tolerance * max(float(scale), 1e-3)

    def _difference(
        self, event: Event, what: str, ranks: str, one: str
    ) -> Difference:
        return Difference(event.kind, event.step, what, ranks, one)


def _rows_of(ranks: Iterable[Event], name: str) -> collections.Counter[int]:
    return collections.Counter(int(x) for r in ranks for x in r.arrays[name])


def _num_rows(event: Event) -> int:
    """Returns the rows of a batch: those of its targets, if it has some."""
    for wanted in ("y", "x"):
        for name, rows in event.arrays.items():
            if name.startswith(wanted):
                return len(rows)
    return 0


def compare(folder: Path, failed: Sequence[str] = ()) -> Verdict:
    """Compares all records in a folder.

    Args:
        folder: The folder.
        failed: The jobs whose script has failed.
    """
    one = read(folder / "one")
    names = sorted(folder.glob("rank*.jsonl"), key=lambda p: int(p.stem[4:]))
    ranks = [read(path) for path in names]
    how = (
        f"the script failed on {' and on '.join(failed)}; its last lines say "
        "why"
    )
    if not one or not ranks:
        why = how if failed else "the script does not call `hvd.init()`"
        return Verdict(2, f"Not compared: {why}.")
    nudged = [read(path) for path in sorted(folder.glob(f"{NUDGED}*.jsonl"))]
    found = Comparison(one, ranks, is_whole=not failed, nudged=nudged).verdict()
    if failed and found.status == 1:
        found.text += f" Then {how}."
    elif failed:
        until = f" Until then: {found.text}" * (found.num_steps > 0)
        found.text = f"Not compared: {how}.{until}"
        found.status = 2
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--failed", action="append", default=[])
    arguments = parser.parse_args()
    found = compare(arguments.folder, arguments.failed)
    if found.status == 1 and found.is_open:
        return NEEDS_NUDGED
    if arguments.json:
        print(found.as_json())
    else:
        print(printable("\n".join([found.text, *found.notes])))
    return found.status


if __name__ == "__main__":
    sys.exit(main())
