"""`hvd.data.files`: a dataset of files of which each rank reads some."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras._common import log
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.dataset_kinds import kind_of
from hvd_keras._common.python_calls import call_for_variant, call_on_arrays
from hvd_keras._values import agreement
from hvd_keras.data import _sources
from hvd_keras.data._arrays import weighted
from hvd_keras.data._deal import FILLING
from hvd_keras.data._lanes import Lanes
from hvd_keras.data._numbered import Rows, is_dense
from hvd_keras.data._pass import Pass
from hvd_keras.data._passes import PassDataset, Paths, is_alone, paths_of
from hvd_keras.data._tracing import unoptimized
from hvd_keras.process_set import ProcessSet, global_process_set

_ROW_BY_ROW = ("Map", "Options", "ParallelMap", "Prefetch", "Restructured")
_TOLD_SECONDS = 1.0
_COUNTED = 1024  # rows at once


def files(
    files: Paths,
    make_dataset: Callable[[tf.Tensor], tf.data.Dataset],
    *,
    shuffle: bool = False,
    seed: int = 0,
    num_rows: Sequence[int] | None = None,
    num_lanes: int = 64,
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns the rows of files of which each rank reads some, as a whole.

    For files whose rows have no numbers: compressed ones, texts, what a
    function filters or generates. Give the result to `hvd.shard`, and `map` to
    what that returns.

    The rows of all files are mixed in turns, so that all files end at about
    the same time. That order is not the one of the files one after another;
    but any number of ranks has it, and takes the same global batches and
    equally many steps. A rank has those rows of a global batch that are of its
    files: ranks have unequally many, and each row counts once. A rank without
    any has a copy with a weight of -0.0.

    To know how many rows there are, the ranks read all files once before,
    each some, unless `make_dataset` or `num_rows` tell. All ranks call this
    with the same arguments.

    Args:
        files: A path, a pattern (`"data/*.csv.gz"`), or a list of paths.
        make_dataset: Makes the rows of a file from its name, a text tensor, as
            for `flat_map`. Each time it gives equally many. Rows are tuples
            (x, y) or (x, y, sample_weight).
        shuffle: Whether the files come in a new order in each epoch. To mix
            the rows of a file too, let `make_dataset` shuffle them, with a
            seed and `reshuffle_each_iteration=False` if training may go on in
            the middle of an epoch.
        seed: Decides on the orders.
        num_rows: Rows of each file; None: they are counted.
        num_lanes: How many files are read at once, by all ranks together; so
            many ranks have rows, at most.
        process_set: The ranks that call this.

    Returns:
        A `tf.data.Dataset` of known length.

    Raises:
        ValueError: An argument cannot be honoured.

    Example:

    >>> def read(name):
    ...     return tf.data.TFRecordDataset(name, "GZIP").map(parse)
    >>> rows = hvd.data.files("train/*.gz", read, shuffle=True)
    >>> model.fit(hvd.shard(rows, batch_size=32), epochs=10)
    """
    paths = paths_of(files)
    if num_rows is not None and len(num_rows) != len(paths):
        raise ValueError(
            "`num_rows` must have a number for each file. Received: "
            f"{len(num_rows)} numbers for {len(paths)} files."
        )
    if type(num_lanes) is not int or num_lanes < 1:
        raise ValueError(
            "`num_lanes` must be an integer >= 1. Received: "
            f"num_lanes={num_lanes!r}."
        )
    if num_rows is None:
        num_rows = _counted(paths, make_dataset, process_set)
    lanes = Lanes(num_rows, num_lanes, seed if shuffle else None)
    if not lanes.num_rows:
        raise ValueError(
            f"`files` must have rows. Received: {len(paths)} files, such as "
            f"{paths[0]}, all without."
        )
    return FilesDataset(paths, make_dataset, lanes)


def _counted(
    paths: list[str],
    make_dataset: Callable[[tf.Tensor], tf.data.Dataset],
    process_set: ProcessSet,
) -> list[int]:
    """Returns the rows of each file; ranks count some each."""
    begun = time.monotonic()
    alone = is_alone()
    rank = 0 if alone else process_set.rank() or 0
    size = 1 if alone else process_set.size() or 1
    own = [_count(path, make_dataset) for path in paths[rank::size]]
    if size == 1:
        return own
    checks = [_exchanged(own)]
    (of_ranks,) = agreement.together("files", checks, process_set)
    seconds = time.monotonic() - begun
    if rank == 0 and seconds > _TOLD_SECONDS:
        log.info(
            f"`hvd.data.files` has counted the rows of {len(paths)} files in "
            f"{seconds:.1f} s; `num_rows` would tell them"
        )
    return [of_ranks[n % size][n // size] for n in range(len(paths))]


def _exchanged(own: list[int]) -> agreement.Check:
    return (yield own)


def _count(
    path: str, make_dataset: Callable[[tf.Tensor], tf.data.Dataset]
) -> int:
    rows = make_dataset(tf.constant(path))
    count = int(rows.cardinality())
    if count >= 0:
        return count
    rows = _sources.before_maps(rows).numbers
    spec, none = rows.element_spec, tf.constant(0, tf.int64)
    if not is_dense(spec) or not all(
        each.shape.is_fully_defined() for each in tf.nest.flatten(spec)
    ):
        return int(rows.reduce(none, as_it_is(lambda count, *_: count + 1)))
    sizes = rows.batch(_COUNTED).map(
        as_it_is(lambda *b: tf.shape(tf.nest.flatten(b)[0], tf.int64)[0])
    )
    return int(sizes.reduce(none, as_it_is(lambda count, size: count + size)))


class FilesDataset(PassDataset):
    """The rows of files, in the order of lanes."""

    def __init__(
        self,
        paths: list[str],
        make_dataset: Callable[[tf.Tensor], tf.data.Dataset],
        lanes: Lanes,
    ) -> None:
        self._paths, self._make, self._lanes = paths, make_dataset, lanes
        # Traced, not run: it may read the file.
        first = tf.data.Dataset.from_tensors(paths[0])
        spec = first.flat_map(make_dataset).element_spec
        self._whole: tf.data.Dataset | None = None

        def begin_whole() -> tf.Tensor:
            if self._whole is None:
                every = range(len(lanes.files))
                self._whole = self._of_lanes(0, every, self._order(0))
            return self._whole._variant_tensor

        @unoptimized
        def whole(_: tf.Tensor) -> tf.data.Dataset:
            variant = call_for_variant(begin_whole)
            return tf.data.experimental.from_variant(variant, spec)

        # Made when it is read: `hvd.shard` reads it otherwise.
        made = tf.data.Dataset.from_tensors(0).flat_map(whole)
        super().__init__(made, lanes.num_rows)

    @property
    def num_lanes(self) -> int:
        return len(self._lanes.files)

    def tell_of_order(self, size: int) -> None:
        """Says what whole files mean for some ranks."""
        few = (
            f" Only {self.num_lanes} of {size} ranks have rows: there are no "
            "more files, or `num_lanes` is less."
        )
        log.info(
            "`hvd.data.files`: each rank reads whole files. The order of rows "
            "is that of all files in turns, not of one after another."
            + (few if self.num_lanes < size else "")
        )

    def own_batches(
        self, part: Pass, change: Callable[..., Any], *, fills: bool
    ) -> tf.data.Dataset:
        """Returns this rank's rows of each global batch of a pass.

        Args:
            part: The pass.
            change: Changes the rows.
            fills: Whether they have weights.

        Raises:
            ValueError: Some ranks may have no rows in a step, and rows tell no
                weights.
        """
        deal = part.deal
        own = range(deal.rank, self.num_lanes, deal.size)
        base = deal.global_size + 1
        if not fills and deal.size > 1:
            raise ValueError(
                "Rows of `hvd.data.files` must be (x, y) or (x, y, "
                "sample_weight): a rank without rows in a step has a copy, "
                f"whose weight is 0. Received: {self.element_spec}."
            )

        @unoptimized
        def own_of(step: tf.Tensor, lanes: tf.Tensor) -> Any:
            lanes = tf.boolean_mask(lanes, lanes % deal.size == deal.rank)
            places, weights = lanes // deal.size, tf.ones(tf.shape(lanes))
            if fills:
                copy = tf.constant([len(own)], tf.int64), tf.constant([FILLING])
                places, weights = tf.cond(
                    tf.size(lanes) > 0, lambda: (places, weights), lambda: copy
                )
            size = tf.size(places, tf.int64)
            return tf.fill([size], step * base + size), places, weights

        steps = self._order(part.first).batch(
            deal.global_size, drop_remainder=deal.policy == "drop"
        )
        of_rows = steps.enumerate().map(own_of).unbatch()
        choice = of_rows.map(unoptimized(lambda key, place, weight: place))
        rows = self._of_lanes(part.first, own, choice, fills=fills)
        told = of_rows.map(unoptimized(lambda key, _, weight: (key, weight)))

        @unoptimized
        def row_of(told: Any, row: Any) -> Any:
            return weighted(row, told[1]) if fills else row

        @unoptimized
        def batch_of(_: tf.Tensor, window: tf.data.Dataset) -> tf.data.Dataset:
            return window.batch(deal.global_size + 1).map(row_of)

        return tf.data.Dataset.zip(told, change(rows)).group_by_window(
            unoptimized(lambda told, row: told[0]),
            batch_of,
            window_size_func=unoptimized(lambda key: key % base),
        )

    def _order(self, first: int) -> tf.data.Dataset:
        """Returns the lane of each row from one on."""
        part, place, _ = self._lanes.at(first)

        def lanes_of(index: Any) -> Any:
            return self._lanes.part(int(index))

        @unoptimized
        def in_part(index: tf.Tensor) -> tf.Tensor:
            (lanes,) = call_on_arrays(lanes_of, [index], [tf.int64])
            return tf.ensure_shape(lanes, [None])

        parts = tf.data.Dataset.range(part, self._lanes.num_parts)
        return parts.map(in_part).unbatch().skip(place)

    def _of_lanes(
        self,
        first: int,
        lanes: Sequence[int],
        choice: tf.data.Dataset,
        *,
        fills: bool = False,
    ) -> tf.data.Dataset:
        """Returns rows from one on of some lanes, each of which is chosen."""
        *_, done = self._lanes.at(first)
        counts, names = self._lanes.counts, tf.constant(self._paths)

        @as_it_is
        def of_pass(_: tf.Tensor) -> tf.data.Dataset:
            (number,) = call_on_arrays(self.begin, [], [tf.int64])
            streams = [self._of_lane(lane, number, done, names, counts)
                       for lane in lanes]  # fmt: skip
            if fills:
                file = self._lanes.files[0][0]
                copy = self._make(names[file]).take(1).repeat()
                streams.append(copy)
            if len(streams) == 1:
                return streams[0]
            return tf.data.Dataset.choose_from_datasets(
                streams, choice, stop_on_empty_dataset=False
            )

        return tf.data.Dataset.from_tensors(0).flat_map(of_pass)

    def _of_lane(
        self, lane: int, number: tf.Tensor, done: Any, names: Any, counts: Any
    ) -> tf.data.Dataset:
        def left(number: Any) -> Any:
            return self._lanes.left_of(lane, number, int(done[lane]))

        def rows_of(file: tf.Tensor, num_before: tf.Tensor) -> tf.data.Dataset:
            rows = self._make(tf.gather(names, file))
            count = tf.gather(tf.constant(counts), file) - num_before
            left = _sources.from_row(rows, num_before)
            return left.apply(tf.data.experimental.assert_cardinality(count))

        of_files, num_before = call_on_arrays(left, [number], [tf.int64] * 2)
        of_files = tf.ensure_shape(of_files, [None])
        num_before = tf.ensure_shape(num_before, [None])
        left_files = tf.data.Dataset.from_tensor_slices((of_files, num_before))
        return left_files.flat_map(rows_of)


def whole_files_of(dataset: Any) -> tuple[FilesDataset, Rows] | None:
    """Returns the files whose rows a dataset has, and how it changes them.

    None: it has other rows.
    """
    files = dataset
    while kind_of(files) in _ROW_BY_ROW:
        (files,) = files._inputs()
    if not isinstance(files, FilesDataset):
        return None
    found = _sources.rows_of(dataset)
    return (files, found) if found.numbers is files else None
