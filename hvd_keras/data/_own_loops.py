"""Tells of loops of one's own whose ranks have unequally many rows.

In `fit`, a rank's gradient counts by its rows. A loop of one's own takes the
mean over a rank's rows, and the mean of these is not that of all rows. It shows
by three things, of which the last may come first, while a step is traced:
a share is iterated outside of Keras's methods, some of its batches have
unequally many rows, and gradients are reduced.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from hvd_keras._common import training_signs
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras import advice
from hvd_keras._keras import calls as keras_calls
from hvd_keras.process_set import ProcessSet

if TYPE_CHECKING:
    from hvd_keras.data._pass import Pass

# Parts of the names of functions in which tf.data runs the body of a loop.
_LOOP_OF_DATASET = "Dataset_"
_MOST_OPEN = 8


class OwnLoop:
    """What loops outside of Keras's methods do with one share.

    Args:
        process_set: The ranks that share the data.
        has_rows: Whether the rows of a `Pass` are rows; otherwise batches.
    """

    def __init__(
        self, process_set: ProcessSet, *, has_rows: bool = True
    ) -> None:
        self.process_set = process_set
        self._has_rows = has_rows
        self._num_rows: int | None = None  # of this rank's first batch
        self._found = ""  # in words, what ranks have in an unequal batch
        self._is_own = False  # no other rank knows
        self._trains = False

    def begin(self, part: Pass) -> None:
        """Notes that an iteration begins."""
        if keras_calls.any_runs() or part.deal.size == 1:
            return
        if self in _open:
            _open.remove(self)
        _open.append(self)
        del _open[:-_MOST_OPEN]  # tf.data does not tell of an end
        num_rows = part.num_rows
        if part.deal.is_uneven:
            self._note("the rows of its own files")
        elif self._has_rows and num_rows and part.num_global_steps:
            begin, end = part.bounds(part.num_global_steps - 1)
            self._note_global(end - begin, part.deal)
        if _reduces.is_next:
            _reduces.is_next = False
            self.train()

    def end(self) -> None:
        """Notes that it has ended."""
        if self in _open:
            _open.remove(self)

    def note_global(self, num_rows: int, deal: Any) -> None:
        """Notes the rows of a global batch that was read."""
        if self in _open:
            self._note_global(num_rows, deal)

    def note_copies(self, num: int, size: int) -> None:
        """Notes that ranks from `num` on have copies of others' batches."""
        if self in _open and num < size:
            self._note(f"rows on rank {num - 1}, copies of rows on rank {num}")

    def note_batch(self, batch: Any) -> None:
        """Notes a batch that has as many rows on all ranks, or should have."""
        if self._found or self not in _open:
            return
        shapes = [getattr(t, "shape", ()) for t in keras.tree.flatten(batch)]
        num_rows = shapes[0][0] if shapes and shapes[0] else None
        if self._num_rows is None:
            self._num_rows = num_rows
        elif num_rows != self._num_rows:
            self._is_own = True
            rank = (self.process_set.ranks or ())[self.process_set.rank() or 0]
            here = f"{_words(num_rows or 0)} on rank {rank}"
            self._note(f"{here}, after {self._num_rows}")

    def train(self) -> None:
        """Notes that gradients of its rows are reduced."""
        self._trains = True
        self._tell()

    def _note_global(self, num_rows: int, deal: Any) -> None:
        if self._found:
            return
        counts = deal.counts(num_rows)
        if len(set(counts)) == 1 and not counts[0][1]:
            return
        ranks = self.process_set.ranks or range(deal.size)
        most, fewest = counts.index(max(counts)), counts.index(min(counts))
        places = [most] if most == fewest else [most, fewest]
        self._note(
            ", ".join(
                f"{_words(*counts[r])} on rank {ranks[r]}" for r in places
            )
        )

    def _note(self, found: str) -> None:
        self._found = self._found or found
        self._tell()

    def _tell(self) -> None:
        if not self._trains or not self._found:
            return
        if self._is_own or self.process_set.rank() == 0:
            advice.tell_of_unequal_rows(self._found)


class _Reduces:
    """What is known of reductions of gradients outside of Keras's methods."""

    def __init__(self) -> None:
        self.is_next = False  # they are those of the share that comes next
        self.is_exact = False  # their losses count all ranks' rows
        self.is_global: bool | None = None  # they are divided by these; unknown


_reduces = _Reduces()
_open: list[OwnLoop] = []  # the running iterations, the last one begun last


def note_exact_loss() -> None:
    """Notes that a loss outside of Keras's methods counts all ranks' rows."""
    if not keras_calls.any_runs():
        _reduces.is_exact = True


def watch_means() -> None:
    """Looks at what TensorFlow's function for means is given."""
    tf = sys.modules["tensorflow"]
    noting = functools.partial(_noting_rows, tf)
    replace(tf.nn, "compute_average_loss", noting)


def _noting_rows(tf: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @as_it_is
    def compute_average_loss(
        per_example_loss: Any,
        sample_weight: Any = None,
        global_batch_size: Any = None,
    ) -> Any:
        num_rows = (getattr(per_example_loss, "shape", None) or [None])[0]
        is_known = isinstance(global_batch_size, int) and num_rows is not None
        is_known &= not tf.distribute.has_strategy()  # that sums gradients
        # The last batch may be smaller: the first one counts.
        if is_known and _reduces.is_global is None:
            _reduces.is_global = global_batch_size > num_rows
        return original(per_example_loss, sample_weight, global_batch_size)

    return compute_average_loss


def note_reduction(process_set: ProcessSet) -> None:
    """Notes that gradients are averaged, or that this is traced."""
    if _reduces.is_global and process_set.size() != 1:
        advice.tell_of_global_mean()
    if _reduces.is_exact or keras_calls.any_runs():
        return
    if _open and _open[-1].process_set == process_set:
        _open[-1].train()
    elif not _open and not _reduces.is_next:
        _reduces.is_next = _reads_data_itself()


training_signs.at_plain_mean.append(note_reduction)


def _reads_data_itself() -> bool:
    """Whether TensorFlow traces what takes its batches from a dataset."""
    tf = sys.modules.get("tensorflow")
    if tf is None or tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if (getattr(graph, "name", "") or "").startswith(_LOOP_OF_DATASET):
            return True
        if any(op.type == "IteratorGetNext" for op in graph.get_operations()):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _words(num_rows: int, num_copies: int = 0) -> str:
    copies = f" and {num_copies} copies" if num_copies else ""
    return f"{num_rows} row{'' if num_rows == 1 else 's'}{copies}"
