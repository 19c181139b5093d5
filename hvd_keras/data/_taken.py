"""What the ranks take of data that they share, compared while they run.

A rank notes a checksum of each global batch that passes through it, or of what
decides on the order. Nothing is read for that. All checksums of an iteration
are folded into one number, which ranks compare now and then.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvd_keras._keras import calls as keras_calls
from hvd_keras._values import agreement
from hvd_keras._values.agreement import Check
from hvd_keras._values.object_format import encode
from hvd_keras.data import _orders
from hvd_keras.data._loop_orders import LoopOrders
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet

_NUM_KEPT = 3  # iterations: tf.data may begin one before the last has ended
_AT_END = "at the end: "
_NUM_TARGETS = 64  # batches whose targets are looked at in an epoch
_MOST_SENT = 2048  # steps of an iteration
_MOST_TOLD = 4096  # steps that an error looks through

_RULE = (
    "All ranks must read the same rows in the same order: each takes its part "
    "of every global batch. Otherwise some rows are left out, and others come "
    "twice. Received: "
)
_CURE_OF_DATASETS = (
    "Leave out `dataset.shard(hvd.size(), hvd.rank())`: `hvd.shard` deals the "
    "rows of all ranks out. Give what shuffles a seed, "
    "`dataset.shuffle(buffer_size, seed=1)`; pass `deterministic=True` to "
    "`map` and `interleave`; or give `hvd.shard` a function that makes the "
    "dataset of an epoch."
)
_CURE_OF_BATCHES = (
    "If `data` is a share that each rank has made, give the whole data. If it "
    "shuffles, let it do so with a seed that is the same on all ranks, such as "
    "`np.random.default_rng(1).shuffle(self.indices)`; or do not shuffle there "
    "and pass `shuffle=True` to `hvd.shard`."
)
_CURE_OF_TARGETS = (
    "Let `data[number]` be the same rows on all ranks: draw their order in "
    "`on_epoch_begin` or `on_epoch_end`, with a seed that is the same on all "
    "ranks, and keep it in an attribute; or pass `shuffle=True` to "
    "`hvd.shard`. What changes targets at random needs a seed of `number`."
)
_CURE_OF_ITERATIONS = (
    "Iterate over what `hvd.shard` returned equally often on all ranks."
)
_CURE_OF_LOOKS = (
    "Look at data before `fit` on all ranks or on none, or give `hvd.shard` a "
    "function that makes the dataset of an epoch: what is shuffled is in "
    "another order whenever it is read."
)


@dataclasses.dataclass
class _Iteration:
    """What a rank has taken in one iteration.

    Args:
        epoch: The number of the epoch in the data.
        first: Rows of the epoch that were used before.
        orders: What may decide on the order, by name, see `_orders`. Those
            at the end of the epoch begin with `_AT_END`.
    """

    epoch: int
    first: int
    orders: dict[str, Any] = dataclasses.field(default_factory=dict)
    # By number of a batch, a checksum and words: of those that all ranks read,
    # and of the first that this rank has read.
    targets: dict[int, tuple[int, str]] = dataclasses.field(
        default_factory=dict
    )
    own_targets: dict[int, int] = dataclasses.field(default_factory=dict)
    num_agreed: int = 0  # steps that all ranks had alike; their notes are gone
    folded: int = 0  # the checksum of these
    notes: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, note: str) -> None:
        """Adds the note of a step, a checksum and words."""
        last = self.notes[-1][0] if self.notes else self.folded
        self.notes.append((zlib.crc32(note.encode(), last), note))

    def folded_at(self, step: int) -> int:
        """Returns the checksum of the first steps."""
        index = step - self.num_agreed
        return self.notes[index - 1][0] if index else self.folded


class Taken:
    """Notes what this rank takes of its share, while somebody asks for it.

    Args:
        process_set: The ranks that share the data.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set
        # Returns notes that were made elsewhere: iteration, words.
        self.num_batches: int | None = None  # of a `PyDataset`
        self.has_targets = False  # those of its batches are noted
        self.is_shuffled = False  # by the number of the epoch
        self.fetch: Callable[[], Iterable[tuple[int, str]]] = tuple
        self._num_looks = 0  # iterations that nobody watched
        self.loops = LoopOrders(process_set)
        self._iterations: dict[int, _Iteration] = {}
        self._numbers = itertools.count()
        self.is_watched = False

    def watch(self) -> None:
        """Begins to note, from the next iteration on."""
        self.forget()
        self.is_watched = True

    def forget(self) -> None:
        """Ends that."""
        self._collect()
        self._iterations.clear()
        self._numbers = itertools.count()
        self.is_watched = False

    def begin(self, epoch: int, first: int) -> int:
        """Notes that an iteration begins; returns its number, or -1."""
        if not self.is_watched:
            self._num_looks += 1
            if first or keras_calls.any_runs():
                return -1
            return self.loops.begin(self._collect)
        number = next(self._numbers)
        self._iterations[number] = _Iteration(epoch, first)
        for old in [n for n in self._iterations if n <= number - _NUM_KEPT]:
            del self._iterations[old]
        return number

    def note_orders(self, orders: dict[str, Any]) -> bool:
        """Notes what decides on the order of the iteration that has begun.

        Returns:
            Whether somebody asks for it.
        """
        running = self._running()
        if running is not None:
            running.orders = orders
        return self.is_watched

    def note_orders_at_end(self, orders: dict[str, Any]) -> None:
        """Notes what batches, or callbacks, may have put in an order."""
        running = self._running()
        if running is not None:
            running.orders.update(
                {f"{_AT_END}{name}": order for name, order in orders.items()}
            )

    def note_targets(
        self, place: int, checksum: int, words: str | None
    ) -> None:
        """Notes the targets of a batch that this rank has read.

        Args:
            place: The number of the batch in the data.
            checksum: Of the targets.
            words: The first of them, if all ranks read this batch.
        """
        running = self._running()
        if running is None:
            return
        if words is not None:
            running.targets[place] = checksum, words
        elif len(running.own_targets) < _NUM_TARGETS:
            running.own_targets[place] = checksum

    def comparing_targets(self) -> Check:
        """Whether all ranks have read the same targets in other batches.

        They run it at the end of an epoch.
        """
        running = self._running()
        own = sorted(running.own_targets.items()) if running else []
        checksums = [checksum for _, checksum in own]
        values = yield from agreement.differing(checksums)
        # Equal targets in all batches tell nothing.
        return values is None and len(set(checksums)) > 1

    def _running(self) -> _Iteration | None:
        if not self.is_watched or not self._iterations:
            return None
        return self._iterations[max(self._iterations)]

    def sent(self) -> dict[int, Any]:
        """Returns what ranks compare, by the number of the iteration.

        That is a place, and the checksums of steps from an agreed one on.
        """
        self._collect()
        sent: dict[int, Any] = {}
        for number, one in sorted(self._iterations.items()):
            epoch = one.epoch if self.is_shuffled else None
            rest = [one.orders, sorted(one.targets.items())]
            place = epoch, one.first, zlib.crc32(encode(rest))
            notes = [checksum for checksum, _ in one.notes[: _MOST_SENT - 1]]
            folded = np.array([one.folded, *notes], np.uint32)
            sent[number] = place, one.num_agreed, folded
        return sent

    def told(self, number: int, step: int) -> list[Any]:
        """Returns what `refuse` gets of a rank, if steps differ."""
        one = self._iterations[number]
        epoch = one.epoch if self.is_shuffled else None
        count = min(step - one.num_agreed, _MOST_TOLD)
        words = {
            "epoch": one.epoch,
            "num_agreed": one.num_agreed,
            "notes": [note for _, note in one.notes[:count]],
            "num_looks": self._num_looks,
        }
        value = [epoch, one.first, one.folded_at(step), one.orders]
        return [[*value, sorted(one.targets.items())], words]

    def agree(self, number: int, step: int) -> None:
        """Drops the notes of the first steps of an iteration."""
        one = self._iterations.get(number)
        if one is not None:
            one.folded = one.folded_at(step)
            del one.notes[: step - one.num_agreed]
            one.num_agreed = step

    def _collect(self) -> None:
        for number, note in self.fetch():
            if self.loops.add(number, note):
                continue
            iteration = self._iterations.get(number)
            if iteration is not None:
                iteration.add(note)

    def refuse(self, values: list[Any]) -> None:
        """Raises if what ranks have told differs in what must be equal."""
        told = [each for _, each in values]
        places = [value[:2] for value, _ in values]
        folded = {value[2] for value, _ in values}
        ranks = self.process_set.ranks or []
        where = ""
        if any(place != places[0] for place in places):
            each = [
                f"the order of epoch {one['epoch'] + 1}"
                + (f" from row {first} on" if first else "")
                for one, (_, first) in zip(told, places, strict=True)
            ]
            cure = _CURE_OF_ITERATIONS
        elif len(folded) > 1:
            index, notes = agreement.first_difference(
                [one["notes"] for one in told]
            )
            number = told[0]["num_agreed"] + index
            epoch = told[0]["epoch"] + 1
            where = f"in batch {number + 1} of epoch {epoch}, "
            each = [f"rows that begin with {_words(note)}" for note in notes]
            looks = {one["num_looks"] for one in told}
            cure = _CURE_OF_LOOKS if len(looks) > 1 else _CURE_OF_DATASETS
        else:
            epoch, cure = told[0]["epoch"] + 1, _CURE_OF_BATCHES
            found = _orders.unequal([v[3] for v, _ in values], self.num_batches)
            targets = [dict(v[4]) for v, _ in values]
            place = _orders.unequal_targets(targets)
            if found is not None:
                name, entries = found
                when = "after" if name.startswith(_AT_END) else "before"
                name = name.removeprefix(_AT_END)
                each = [f"`{name}` of `data` begins with {e}" for e in entries]
                where = f"{when} epoch {epoch}, "
            elif place is not None:
                each = [
                    f"targets that begin with {t[place][1]}" for t in targets
                ]
                where = f"in `data[{place}]` in epoch {epoch}, "
                cure = _CURE_OF_TARGETS
            else:
                return
        received = agreement.by_rank(each, ranks)
        if len(set(each)) == 1:
            received += "; what follows differs"
        raise MismatchError(f"{_RULE}{where}{received}. {cure}")


def comparing(taken: Taken | None) -> Check:
    """Compares what ranks have taken so far of the data that they share.

    Args:
        taken: What this rank has taken; None: nothing. Then nobody compares.

    Raises:
        MismatchError: On all ranks: they have taken other rows, or in another
            order.
    """
    of_ranks = yield None if taken is None else taken.sent()
    if taken is None or any(sent is None for sent in of_ranks):
        return
    # What some ranks have read ahead, the others will read.
    place = min(map(_end, of_ranks))
    found = {_at(sent, *place) for sent in of_ranks}
    if None in found:
        return  # a rank has long begun the next iteration but one
    if len(found) > 1:
        taken.refuse((yield taken.told(*place)))
    taken.agree(*place)


def _end(sent: dict[int, Any]) -> tuple[int, int]:
    """Returns the iteration and the step at which ends what a rank has sent."""
    end = -1, 0
    for number, (_, num_agreed, folded) in sent.items():
        end = number, num_agreed + len(folded) - 1
        if len(folded) == _MOST_SENT:
            break
    return end


def _at(sent: dict[int, Any], number: int, step: int) -> Any:
    """Returns what must be equal at a step; None if a rank has not sent it."""
    place, num_agreed, folded = sent.get(number, (None, 0, []))
    index = step - num_agreed
    return (place, int(folded[index])) if 0 <= index < len(folded) else None


def _words(note: str | None) -> str:
    return "" if note is None else note.partition(" ")[2]
