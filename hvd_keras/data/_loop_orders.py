"""Tells hvdrun which batches of a share a loop of one's own has read.

All ranks must read the same batches, and each takes its rows. In `fit` they
compare that while they train. Outside of it nobody knows when all ranks could,
so hvdrun compares what each tells at its end.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Callable

from hvd_keras._common import remarks, user_code
from hvd_keras._job import last_words, state
from hvd_keras.process_set import ProcessSet, global_process_set

_FIRST = 1 << 32  # the number of the first loop; others are those of `fit`
_MOST_SHARES = 8
_MOST_LOOPS = 4  # over each
_MOST_BATCHES = 16  # as in tf_ops/observe/batch_notes.h
_shares = itertools.count()

_TEXT = (
    "All ranks must give all rows to `hvd.shard`, in the same order: each "
    "takes its part of every global batch. Otherwise some rows are left out, "
    "and others come twice. Pass all the data on each rank, not a share of "
    "them by `hvd.rank()`; give what shuffles or draws a seed, the same on all "
    "ranks, such as `dataset.shuffle(buffer_size, seed=1)`; and iterate "
    "equally often. Received: in the loop{at}, batches whose first rows differ"
)


class LoopOrders:
    """Keeps notes of the first batches of the first loops over one share.

    Args:
        process_set: The ranks that share the data.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._share = next(_shares)
        self._is_told = (
            process_set is global_process_set and self._share < _MOST_SHARES
        )
        self._place = ""
        self._loops: list[tuple[str, int]] = []  # the line, the steps before
        self._notes: dict[int, list[str]] = {}

    def note_place(self) -> None:
        """Notes the line that is about to begin a loop, in its thread."""
        if len(self._loops) < _MOST_LOOPS:
            self._place = user_code.place()

    def begin(self, collect: Callable[[], None]) -> int:
        """Notes that a loop begins; returns its number, or -1.

        Args:
            collect: Fetches the notes that were made by then.
        """
        job = state.job()
        if not self._is_told or job is None or job.config.elastic:
            return -1
        if len(self._loops) == _MOST_LOOPS:
            return -1
        if not self._loops:
            # A share may be dropped before; its notes come to `add` then.
            reference = weakref.WeakMethod(collect)
            last_words.at_end.append(lambda _: self._tell(reference))
        self._loops.append((self._place, last_words.num_steps()))
        return _FIRST + len(self._loops) - 1

    def add(self, number: int, note: str) -> bool:
        """Adds the note of a batch, a checksum and words.

        Returns:
            Whether the number is that of a loop.
        """
        if number < _FIRST:
            return False
        notes = self._notes.setdefault(number - _FIRST, [])
        if len(notes) < _MOST_BATCHES:
            notes.append(note)
        return True

    def _tell(self, reference: weakref.WeakMethod[Callable[[], None]]) -> None:
        if (collect := reference()) is not None:
            collect()
        ends = [before for _, before in self._loops[1:]]
        ends.append(last_words.num_steps())
        # In the others, one rank may have had a look.
        training = [
            (place, self._notes.get(number, []))
            for number, (place, before) in enumerate(self._loops)
            if ends[number] > before
        ]
        told = [
            note
            for _, notes in training
            for note in [*notes, *[""] * (_MOST_BATCHES - len(notes))]
        ]
        if any(told):
            place = training[0][0]
            text = _TEXT.format(at=f" at {place}" if place else "")
            about = f"{remarks.OTHER_ROWS} {place or self._share}"
            remarks.keep(text, about, value=json.dumps(told))
