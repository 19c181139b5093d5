"""`hvd.data.records`: a dataset of rows that are read by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data import _formats, _records
from hvd_keras.data import _record_index as record_index
from hvd_keras.data._lengths import of_rows
from hvd_keras.data._numbered import Rows
from hvd_keras.data._numbering import Numbering
from hvd_keras.data._passes import (
    PassDataset,
    Paths,
    counted,
    is_alone,
    paths_of,
)
from hvd_keras.data._row_orders import SHUFFLES, Order
from hvd_keras.data._tracing import unoptimized
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set

_NUM_KEPT = 8  # groups of rows of a Parquet file
_NUM_AT_ONCE = 64  # rows, where nobody deals them out


def records(
    files: Paths,
    *,
    shuffle: str | None = None,
    seed: int = 0,
    kind: str | None = None,
    on_error: str = "raise",
    window: int = 64,
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns the rows of files, in a new order in each epoch.

    Give the result to `hvd.shard`, with or without `map` and other stages
    behind it. Then each rank reads its own rows alone, and any number of ranks
    has the rows of an epoch in the same order: `seed` and the number of the
    epoch decide on it. So training goes on at any row at once, on another
    number of ranks too.

    All ranks call this with the same arguments: each finds out where the
    records of some of the files are. That is kept for the next job.

    - "global": any row may come at any place, each order of all rows is about
      equally likely. The disk reads single rows.
    - "blocks": blocks of about a megabyte are shuffled, and then the rows of
      each `window` of them. Rows of one block come near to each other, so the
      disks, and what caches them, read whole blocks. Rows of different blocks
      are independent of each other.

    Args:
        files: A path, a pattern (`"data/*.tfrecord"`), or a list of paths.
        shuffle: "global", "blocks", or None: the order of the files.
        seed: Decides on the orders.
        kind: "tfrecord" or "array_record": a row is a text scalar;
            "webdataset": tars, a row is a dict of the members that share a
            key, with "__key__"; "parquet": a row is a dict of its columns.
            None: by the end of the names (`.array_record`, `.tar`,
            `.parquet`), else "tfrecord".
        on_error: "raise" or "skip". With "skip", the first job reads all data
            once and notes what is damaged; those records are no rows then, and
            rank 0 tells their number.
        window: Blocks that are mixed, for "blocks".
        process_set: The ranks that call this.

    Returns:
        A `tf.data.Dataset` of known length. Each iteration over it outside of
        `hvd.shard` is the next epoch.

    Raises:
        InvalidArgumentError: On all ranks: a file cannot be read.
        DamagedFileError: On all ranks: a file is not whole.
        ValueError: An argument cannot be honoured.
        ModuleNotFoundError: The files need a package that is missing.

    Example:

    >>> rows = hvd.data.records("train/*.tfrecord", shuffle="global", seed=1)
    >>> model.fit(hvd.shard(rows.map(parse), batch_size=32), epochs=10)
    """
    _check(shuffle, seed, on_error, window)
    paths = paths_of(files)
    form = _formats.form_of(paths, kind)
    scan = form.scan if on_error == "raise" else form.checked_scan
    if not is_alone():
        refusal = _records.index_together(paths, process_set, scan)
        if refusal:
            raise InvalidArgumentError(refusal)
    indexes, _ = record_index.indexes_of(paths, scan)
    numbering = Numbering(indexes)
    if not numbering.num_rows:
        raise InvalidArgumentError(
            f"`files` must have rows. Received: {paths[0]} and "
            f"{len(paths) - 1} more, all without."
        )
    if not basics.is_initialized() or process_set.rank() == 0:
        _tell_of_damage(paths, indexes, numbering)
    order = Order(numbering.begins, shuffle, seed, window)
    num_kept = window if shuffle == "blocks" else _NUM_KEPT
    reader = form.open(paths, indexes, numbering, num_kept)
    return _RecordsDataset(numbering, order, reader, seed)


class _RecordsDataset(PassDataset):
    """Rows by their numbers, as a stage that `_sources` knows."""

    def __init__(
        self,
        numbering: Numbering,
        order: Order,
        reader: _formats.Reader,
        seed: int,
    ) -> None:
        self._numbering, self._order = numbering, order
        # As those of a `shuffle`: ranks compare them.
        self._seed, self._seed2 = tf.constant(seed), tf.constant(1)
        fetch = unoptimized(lambda numbers: reader.fetch(numbers))
        self.rows = Rows(
            self._numbers(),
            unoptimized(lambda row: row),
            fetch=fetch,
            is_light=True,
            has_work=True,
            lengths=of_rows(order.num_rows),
        )
        made = self.rows.numbers.batch(_NUM_AT_ONCE).map(
            fetch, num_parallel_calls=2, deterministic=True
        )
        super().__init__(made.unbatch(), order.num_rows)

    def _numbers(self) -> tf.data.Dataset:
        """Returns what stands for the rows of an epoch, in order."""
        order, numbering = self._order, self._numbering

        def part_of(number: Any, index: Any) -> Any:
            return numbering.numbers_of(order.part(number, int(index)))

        @unoptimized
        def numbers_of_pass(_: tf.Tensor) -> tf.data.Dataset:
            (number,) = call_on_arrays(self.begin, [], [tf.int64])

            @unoptimized
            def numbers_of_part(index: tf.Tensor) -> tf.Tensor:
                (numbers,) = call_on_arrays(
                    part_of, [number, index], [tf.int64]
                )
                return tf.ensure_shape(numbers, [None])

            parts = tf.data.Dataset.range(order.num_parts)
            return parts.map(numbers_of_part).unbatch()

        passes = tf.data.Dataset.from_tensors(0).flat_map(numbers_of_pass)
        return counted(passes, order.num_rows)


def _check(shuffle: Any, seed: Any, on_error: Any, window: Any) -> None:
    for name, value, choices in (
        ("shuffle", shuffle, SHUFFLES),
        ("on_error", on_error, ("raise", "skip")),
    ):
        if value not in choices:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(repr, choices))}. "
                f"Received: {name}={value!r}."
            )
    for name, value, least in (("seed", seed, 0), ("window", window, 1)):
        if type(value) is not int or value < least:
            raise ValueError(
                f"`{name}` must be an integer >= {least}. Received: "
                f"{name}={value!r}."
            )


def _tell_of_damage(
    paths: list[str],
    indexes: Sequence[record_index.Index],
    numbering: Numbering,
) -> None:
    num_lost = sum(index.num_lost_bytes for index in indexes)
    if not (numbering.num_damaged or num_lost):
        return
    damaged = [
        path
        for path, index in zip(paths, indexes, strict=True)
        if index.damaged or index.num_lost_bytes
    ]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    log.warning(
        f"leaving out {numbering.num_damaged} damaged records and {num_lost} "
        f"bytes behind damaged lengths, of {numbering.num_rows} rows, in "
        f"{damaged[0]}{more}"
    )
