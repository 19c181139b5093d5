"""Numbers the records of TFRecord files, and reads them by their numbers.

What makes a dataset of a name of a file (`TFRecordDataset`, and functions of
`flat_map` and `interleave`) is run again, on the numbers of the file's records.
So they come in the order of the records.

| Private name of TensorFlow | Used to |
|---|---|
| `Dataset._inputs`, class names | know what names files, and what reads them |
| `_map_func._func` | make the dataset of a file again |
| `_tensors`, `_filenames`, `_impl` | know the files |
| `_cycle_length`, `_block_length`, `_num_parallel_calls`, \
`_buffer_output_elements`, `_prefetch_input_elements` | interleave numbers |
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras._common.dataset_kinds import kind_of
from hvd_keras._common.paths import is_remote
from hvd_keras._values import agreement
from hvd_keras.data import _functions
from hvd_keras.data import _record_index as record_index
from hvd_keras.data import _remote_records as remote_records
from hvd_keras.data._lengths import of_rows
from hvd_keras.data._numbered import Rows
from hvd_keras.data._tracing import unoptimized
from hvd_keras.exceptions import DamagedFileError, InvalidArgumentError
from hvd_keras.process_set import ProcessSet

RowsOf = Callable[[Any], Rows]

# Stages that pass on all names, or some.
_ALL_NAMES = frozenset({"Cache", "Options", "Prefetch", "Shuffle"})
_SOME_NAMES = frozenset(
    {"Concatenate", "Filter", "Repeat", "Shard", "Skip", "Take", "TakeWhile"}
)
# Stages between a file and what reads all of them.
_ALL_RECORDS = frozenset({"Map", "Options", "ParallelMap", "Prefetch"})
_SOME_RECORDS = frozenset({"Skip", "Take"})


class _NotNumberedError(Exception):
    """A function does with files what numbers cannot follow."""


class Files:
    """TFRecord files, whose records have numbers.

    Args:
        names: Their names, as the dataset has them.
        indexes: Those of the files.
    """

    def __init__(
        self, names: Sequence[bytes], indexes: Sequence[record_index.Index]
    ) -> None:
        self.counts = {
            name: index.num_records
            for name, index in zip(names, indexes, strict=True)
        }
        core = _native.core()
        self._source = core.add_records(
            [
                (name, index.fingerprint, index.for_core())
                for name, index in zip(names, indexes, strict=True)
            ]
        )
        paths = list(map(os.fsdecode, names))
        self._remote = (
            remote_records.reader_of(paths, indexes)
            if any(map(is_remote, paths)) and any(self.counts.values())
            else None
        )
        done = weakref.finalize(self, core.remove_records, self._source)
        done.atexit = False

    def numbers_of(self, name: tf.Tensor) -> tf.data.Dataset:
        """Returns the numbers of a file's records, in a graph."""
        first, count = _native.ops().horovod_find_records(
            name, source=self._source
        )
        return tf.data.Dataset.range(first, first + count)

    def read(self, numbers: tf.Tensor) -> Any:
        """Returns the records that have numbers, in a graph."""
        if self._remote is not None:
            return self._remote.fetch(numbers)
        return _native.ops().horovod_read_records(numbers, source=self._source)


# The files, and what names one, while a function is run again.
_reading: contextvars.ContextVar[tuple[Files, list[tf.Tensor]] | None] = (
    contextvars.ContextVar("reading", default=None)
)


def prepare(
    dataset: tf.data.Dataset, kinds: Container[str], process_set: ProcessSet
) -> None:
    """Finds out where the records of a dataset are, each rank for some files.

    Args:
        dataset: The dataset.
        kinds: Stages that may stand behind what reads the files.
        process_set: The ranks.

    Raises:
        DamagedFileError: On all ranks: a file is not whole.
    """
    names = {name: None for each in _stages(dataset, kinds) for name in each}
    if not names:
        return
    paths = [os.fsdecode(name) for name in names]
    index_together(paths, process_set)


def index_together(
    paths: list[str],
    process_set: ProcessSet,
    scan: record_index.Scan = record_index.TFRECORDS,
) -> str:
    """Makes the indexes of files, each rank some; all call it.

    Returns:
        Why they are not known; "": they are.

    Raises:
        DamagedFileError: On all ranks: a file is not whole.
    """
    checks = [_indexed_together(paths, process_set, scan)]
    (refusal,) = agreement.together("records", checks, process_set)
    return str(refusal)


def _indexed_together(
    paths: list[str], process_set: ProcessSet, scan: record_index.Scan
) -> agreement.Check:
    record_index.forget(paths, scan)
    rank, size = process_set.rank() or 0, process_set.size() or 1
    answer: tuple[str, str, list[bytes], list[str]]
    try:
        found, changed = record_index.indexes_of(paths[rank::size], scan)
        answer = (
            "",
            "",
            [record_index.encode(each) for each in found],
            changed,
        )
    except DamagedFileError as error:
        answer = (str(error), "", [], [])
    except InvalidArgumentError as error:
        answer = ("", str(error), [], [])
    answers = yield answer
    damage, refusal = (
        next((one[part] for one in answers if one[part]), "") for part in (0, 1)
    )
    if damage:
        raise DamagedFileError(damage)
    if rank == 0:
        record_index.tell_changed(
            [path for *_, each in answers for path in each]
        )
    for number, path in enumerate(paths):
        data = None if refusal else answers[number % size][2][number // size]
        record_index.learn(path, data, scan)
    return refusal


def _stages(dataset: Any, kinds: Container[str]) -> Iterator[list[bytes]]:
    """Yields the names of the files that a stage reads, if they are known."""
    if kind_of(dataset) not in kinds:
        return
    dataset = getattr(dataset, "_impl", dataset)
    names = _names_read_by(dataset)
    if names:
        yield names
    for before in dataset._inputs():
        yield from _stages(before, kinds)


def _names_read_by(dataset: Any) -> list[bytes] | None:
    """Returns the names of all files that a stage may read; None: unknown."""
    function = getattr(dataset, "_map_func", None)
    if function is None or not _functions.reads_records(function.function):
        return None
    (before,) = dataset._inputs()
    return _names_in(before)


def _names_in(dataset: Any) -> list[bytes] | None:
    """Returns the names that a dataset may have; None if they are unknown."""
    kind = kind_of(dataset)
    if kind == "TensorSlice":
        return [
            name
            for tensor in dataset._tensors
            if tensor.dtype == tf.string and tensor.shape.rank == 1
            for name in tensor.numpy().tolist()
        ]
    if kind not in _ALL_NAMES | _SOME_NAMES:
        return None
    names = list(map(_names_in, dataset._inputs()))
    if any(each is None for each in names):
        return None
    return [name for each in names for name in each or ()]


def rows_of_files(dataset: Any, rows_of: RowsOf) -> Rows | None:
    """Returns the records of files, in the order of a `flat_map` or the like.

    Args:
        dataset: What makes a dataset of each file.
        rows_of: Returns the elements of a dataset.

    Returns:
        None if they cannot be numbered.
    """
    names = _names_read_by(dataset)
    if not names:
        return None
    unique = list(dict.fromkeys(names))
    try:
        indexes, _ = record_index.indexes_of(list(map(os.fsdecode, unique)))
    except InvalidArgumentError:
        return None
    files = Files(unique, indexes)
    (before,) = dataset._inputs()
    of_names = rows_of(before).one_by_one()
    autograph = tf.__internal__.autograph
    of_file = autograph.tf_convert(
        dataset._map_func._func, autograph.control_status_ctx()
    )
    made: list[tuple[Rows, bool]] = []

    def numbers_of(number: Any) -> tf.data.Dataset:
        name = of_names.read(number)
        inner = of_file(*(name if type(name) is tuple else (name,)))
        has_all = _has_all_records(inner)
        token = _reading.set((files, tf.nest.flatten(name)))
        try:
            made[:] = [(rows_of(inner), has_all)]
        finally:
            _reading.reset(token)
        return made[0][0].numbers

    try:
        numbers = _in_order_of(
            dataset, of_names.numbers, of_names.for_elements(numbers_of)
        )
    except _NotNumberedError:
        return None
    rows, has_all = made[0]
    has_all &= _has_all_names(before)
    count = sum(files.counts[name] for name in names) if has_all else None
    lengths = None if count is None else of_rows(count)
    return dataclasses.replace(rows, numbers=numbers, lengths=lengths)


def _has_all_names(dataset: Any) -> bool:
    kind = kind_of(dataset)
    if kind == "TensorSlice":
        return len(dataset._tensors) == 1
    return kind in _ALL_NAMES and all(map(_has_all_names, dataset._inputs()))


def _has_all_records(dataset: Any) -> bool:
    """Whether a dataset has all records of its file.

    Raises:
        _NotNumberedError: It cannot be told which it has.
    """
    kind = kind_of(dataset)
    if kind == "TFRecord":
        return True
    if kind not in _ALL_RECORDS | _SOME_RECORDS:
        raise _NotNumberedError
    for function in (each.function for each in dataset._functions()):
        of_name = any(map(tf.is_symbolic_tensor, function.captured_inputs))
        if of_name or _functions.is_stateful(function):
            raise _NotNumberedError
    (before,) = dataset._inputs()
    return _has_all_records(before) and kind in _ALL_RECORDS


def _in_order_of(
    dataset: Any,
    names: tf.data.Dataset,
    numbers_of: Callable[..., tf.data.Dataset],
) -> tf.data.Dataset:
    """Returns the numbers of files in the order of a stage's records."""
    if kind_of(dataset) == "FlatMap":
        return names.flat_map(numbers_of)
    cycle = dataset._cycle_length, dataset._block_length
    if not hasattr(dataset, "_buffer_output_elements"):
        return names.interleave(numbers_of, *cycle)
    buffers = dataset._buffer_output_elements, dataset._prefetch_input_elements
    if not hasattr(dataset, "_num_parallel_calls"):  # that of parallel reads
        return type(dataset)(names, numbers_of, *cycle, False, *buffers)
    if int(dataset._cycle_length) > 0:  # in the same order without threads
        return names.interleave(numbers_of, *cycle)
    return type(dataset)(
        names,
        numbers_of,
        *cycle,
        dataset._num_parallel_calls,
        *buffers,
        deterministic=True,
    )


def rows_of_records(dataset: Any, rows_of: RowsOf) -> Rows | None:
    """Returns the records of a `TFRecordDataset`.

    None if they cannot be numbered.

    Raises:
        _NotNumberedError: It is one of a file, and reads something else.
    """
    reading = _reading.get()
    if reading is None:
        return rows_of(dataset._impl) if hasattr(dataset, "_impl") else None
    files, given = reading
    name = dataset._filenames
    if kind_of(name) == "TensorSlice":
        (name,) = name._tensors
    while isinstance(name, tf.Tensor) and name.op.type in (
        "Identity",
        "Reshape",
    ):
        name = name.op.inputs[0]
    if not any(name is each and each.shape.rank == 0 for each in given):
        raise _NotNumberedError
    return Rows(
        files.numbers_of(name),
        lambda record: record,
        fetch=unoptimized(lambda numbers: files.read(numbers)),
        is_light=True,
        has_work=True,
    )
