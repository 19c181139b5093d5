"""Cuts tf.data pipelines into the batches of a rank."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.dataset_kinds import kind_of
from hvd_keras._common.python_calls import call_for_variant, call_on_arrays
from hvd_keras._keras import random_streams
from hvd_keras.data import _first_rows as first_rows
from hvd_keras.data import (
    _own_batches,
    _passes,
    _passing,
    _redrawn,
    _rows,
    _shuffles,
    _sources,
    _whole_files,
)
from hvd_keras.data._arrays import describe as describe_arrays
from hvd_keras.data._arrays import own_rows, weighted
from hvd_keras.data._deal import Deal
from hvd_keras.data._numbered import Rows
from hvd_keras.data._pass import Pass
from hvd_keras.data._small_rest import (
    has_rows,
    num_rows_in,
    with_small_rest,
)
from hvd_keras.data._tracing import unoptimized
from hvd_keras.data.position import Handle


def without_tuner(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with tf.data's autotuner off."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def as_sharded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, marked as a rank's share."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options)


def num_rows_of(dataset: tf.data.Dataset, *, batched: bool) -> int | None:
    """Returns the number of rows, or None if tf.data does not know it."""
    cardinality = int(dataset.cardinality())
    return None if batched or cardinality < 0 else cardinality


def check_has_tensors(dataset: tf.data.Dataset) -> None:
    """Raises TypeError unless the elements consist of tensors."""
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, _rows.SPECS):
            raise TypeError(
                "`data` must be a tf.data.Dataset whose elements consist of "
                "dense, ragged or sparse tensors. Received: elements with "
                f"{spec}."
            )


def _seeds_of(dataset: Any) -> list[list[int]]:
    """Returns the seeds of what shuffles, as far as datasets tell.

    It returns some other number for none, so that ranks never agree on that.
    """
    found: list[list[int]] = []
    seeds: list[Any] = [getattr(dataset, f"_seed{n}", None) for n in ("", 2)]
    if all(isinstance(seed, tf.Tensor) for seed in seeds):
        found.append([int(seed) for seed in seeds])
        if found[0] == [0, 0]:
            found[0] = [0, random.SystemRandom().getrandbits(32)]
    inputs: Any = getattr(dataset, "_inputs", tuple)()
    return found + [each for one in inputs for each in _seeds_of(one)]


def _parts_in(dataset: Any) -> Iterator[str]:
    """Yields the stages that leave rows out by their places."""
    kind = kind_of(dataset)
    found: list[Any] = [
        getattr(dataset, name, None) for name in _COUNTS.get(kind, ())
    ]
    if found and all(isinstance(count, tf.Tensor) for count in found):
        counts = ", ".join(str(int(count)) for count in found)
        yield f"`dataset.{kind.lower()}({counts})`"
    for one in getattr(dataset, "_inputs", tuple)():
        yield from _parts_in(one)


# Their numbers, private names of TensorFlow.
_COUNTS = {
    "Shard": ("_num_shards", "_index"),
    "Skip": ("_count",),
    "Take": ("_count",),
}


def global_batches(
    dataset: tf.data.Dataset, deal: Deal, *, batched: bool
) -> tf.data.Dataset:
    """Returns the batches that the ranks share, equal on all of them."""
    specs = tf.nest.flatten(dataset.element_spec)
    if batched and _may_vary(dataset):
        return dataset.flat_map(
            unoptimized(lambda *batch: _pieces_of(batch, deal))
        )
    make = dataset.batch
    if batched:
        _check_lengths(dataset)
    if batched and all(isinstance(spec, tf.TensorSpec) for spec in specs):
        make = dataset.rebatch
    elif batched:  # `rebatch` cannot cut the others
        make = dataset.unbatch().batch
    batches = make(deal.global_size, drop_remainder=deal.policy == "drop")
    return with_small_rest(batches, deal) if deal.joins_rest else batches


def _check_lengths(batches: tf.data.Dataset) -> None:
    """Raises ValueError if the parts of a batch have other numbers of rows."""
    lengths = {
        spec.shape[0]
        for spec in tf.nest.flatten(batches.element_spec)
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank
    }
    if len(lengths - {None}) > 1:
        raise ValueError(
            "The parts of a batch must have the same number of rows, their "
            f"first dimension. Received: {batches.element_spec}. Make batches "
            "of one size, or shard each dataset by itself and zip the results."
        )


def _may_vary(batches: tf.data.Dataset) -> bool:
    """Whether the rows of two batches may have other lengths.

    `padded_batch` and `bucket_by_sequence_length` make such batches. They do
    not fit together, so each is cut by itself.
    """
    return any(
        isinstance(spec, tf.TensorSpec)
        and (spec.shape.rank is None or None in spec.shape.as_list()[1:])
        for spec in tf.nest.flatten(batches.element_spec)
    )


def _pieces_of(batch: tuple[Any, ...], deal: Deal) -> tf.data.Dataset:
    """Returns the global batches that one batch makes."""
    data = batch if len(batch) > 1 else batch[0]
    return global_batches(
        tf.data.Dataset.from_tensor_slices(data), deal, batched=False
    )


class Source:
    """Makes the dataset of each epoch.

    Args:
        make: Returns the dataset of an epoch.
        batched: Whether its elements are batches.
        is_fixed: Whether it is the same in all epochs.
        keeps: Whether each of them is a global batch; positions count those.
    """

    def __init__(
        self,
        make: Callable[[int], tf.data.Dataset],
        *,
        batched: bool,
        is_fixed: bool,
        keeps: bool = False,
    ) -> None:
        self._make = make
        self._batched = batched
        self._keeps = keeps
        self.is_fixed = is_fixed
        self.first = make(0)
        self._redrawn: _redrawn.Redrawn | None = None
        # Whether nothing may be fetched before it is asked for.
        self.is_read_late = hasattr(self.first, "_hvd_is_read_late")
        # Batches that do not fit together are cut each by itself.
        self._is_whole = keeps or (batched and _may_vary(self.first))
        self._late = self._late_rows_of(self.first)
        # Those of `hvd.data.files`, and how their rows are changed.
        self.whole_files = (
            _whole_files.whole_files_of(self.first)
            if is_fixed and not batched
            else None
        )

    def begin(self, epoch: int) -> None:
        """Has what shuffles by the number of an epoch begin with this one."""
        if self.is_fixed:
            _passes.begin_epoch(self.first, epoch)

    def late_rows(self, epoch: int) -> Rows | None:
        """Returns the rows of an epoch, to be read when they are dealt.

        None if all ranks must read them.
        """
        if self.is_fixed or self._late is None:
            return self._late
        return self._late_rows_of(self.of_epoch(epoch))

    def what_blocks(self) -> str:
        """Names what has all ranks do work on all rows; "": nothing does."""
        found = self._late
        if self.whole_files is not None:
            return ""
        if found is None:
            found = _sources.rows_of(self.first)
        if self._late or found.blocked_by or not found.has_work:
            return found.blocked_by
        if self._keeps:
            return f"{_sources.last_stage_of(self.first)} of batches"
        if self._batched and (found.count is None or found.lengths is None):
            return "a `map` of batches"
        return "elements that are not alike"

    def _late_rows_of(self, dataset: tf.data.Dataset) -> Rows | None:
        if self._is_whole:
            return None
        if self.is_fixed and _shuffles.is_endless(dataset):
            self._redrawn = _redrawn.of(dataset, batched=self._batched)
            if self._redrawn is not None:
                return self._redrawn.rows
        return _sources.late_rows_of(
            dataset, batched=self._batched, is_fixed=self.is_fixed
        )

    def pass_over(self, made: tf.data.Dataset, count: int) -> None:
        """Has what shuffles be as after iterations that nobody has read."""
        if self._redrawn is not None:
            self._redrawn.pass_over(count)
            return
        for _ in range(count):
            iter(made)

    def describe(self) -> list[Any]:
        """Returns what must be equal on all ranks: types, shapes, seeds.

        Rows are compared while they are used. Reading some here would take
        them from data that can be read only once. Arrays in memory that only
        numbers stand for are compared here.
        """
        specs = tf.nest.flatten(self.first.element_spec)
        arrays = [] if self._late is None else _sources.arrays_of(self.first)
        return [
            *([spec.dtype.name, str(spec.shape), None] for spec in specs),
            *(entry for each in arrays for entry in describe_arrays(each)),
            ["parts", " of ".join(_parts_in(self.first)) or "all", None],
            ["shuffle", _seeds_of(self.first), None],
        ]

    def of_epoch(self, epoch: int) -> tf.data.Dataset:
        """Returns the dataset of an epoch.

        Raises:
            ValueError: Its elements have other types or shapes.
        """
        with random_streams.common(only_seed=True):
            dataset = self._make(epoch)
        if dataset.element_spec != self.first.element_spec:
            raise ValueError(
                "`data` must make datasets of the same types and shapes in all "
                f"epochs. Received: {dataset.element_spec} in epoch {epoch}, "
                f"{self.first.element_spec} in epoch 0."
            )
        if not self.is_fixed:
            _passes.begin_epoch(dataset, epoch)
        return dataset

    def global_batches(
        self, part: Pass, handle: Handle, late: Rows | None
    ) -> tf.data.Dataset:
        """Returns the batches that the ranks share in a pass.

        Args:
            part: The pass.
            handle: Gets a checksum of the first rows.
            late: Rows to be read later; the batches are of their numbers. If
                these are batches, all ranks read them now.
        """
        if self._keeps:
            return self._kept_batches(part, handle)
        if late is not None and late.count is not None:
            # The order is compared by numbers, as where batches are read late.
            numbers = _own_batches.noted(late, part, handle.note_first_rows)
            whole = numbers.map(late.for_elements(late.read))
            if part.first:
                whole = whole.unbatch().skip(part.first)
            return global_batches(whole, part.deal, batched=not part.first)
        if late is not None:
            dataset, batched = late.numbers, False
        else:
            dataset, batched = self.of_epoch(part.epoch), self._batched
        if late is not None and late.is_light and part.first:
            numbers = first_rows.left_numbers(dataset, part)
            return global_batches(numbers, part.deal, batched=False)
        if not part.first:
            batches = global_batches(dataset, part.deal, batched=batched)
            return first_rows.noted(batches, handle.note_first_rows)
        if batched and _may_vary(dataset):
            # It is exact for as many ranks as took the steps before.
            batches = global_batches(dataset, part.deal, batched=True)
            return batches.skip(-(-part.first // part.deal.global_size))
        return first_rows.left_batches(
            dataset.unbatch() if batched else dataset,
            part,
            lambda rows: global_batches(rows, part.deal, batched=False),
        )

    def _kept_batches(self, part: Pass, handle: Handle) -> tf.data.Dataset:
        batches = self.of_epoch(part.epoch)
        if part.deal.joins_rest:
            batches = with_small_rest(batches, part.deal)
        if part.first:
            return batches.skip(part.first)
        return first_rows.noted(batches, handle.note_first_rows)


def shard_dataset(
    source: Source, handle: Handle, deal: Deal, num_rows: int | None
) -> tf.data.Dataset:
    """Returns this rank's part of each of the global batches.

    Args:
        source: The data of all ranks.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        num_rows: Rows of an epoch; None if unknown.
    """
    form = (deal.is_static(num_rows), deal.may_fill(num_rows))
    # Of whole epochs, by deal: tracing its functions takes a while.
    whole: dict[Deal, tf.data.Dataset] = {}
    # TensorFlow drops functions of a dataset that Python has dropped.
    running: list[tf.data.Dataset] = []

    def own(part: Pass) -> tf.data.Dataset:
        if not part.first and part.deal in whole:
            return whole[part.deal]
        if source.whole_files is not None:
            files, rows_of = source.whole_files
            made = files.own_batches(part, rows_of.changed_all, fills=form[1])
            if not part.first:
                whole[part.deal] = made
            return made
        late = source.late_rows(part.epoch)
        noted = noting(part.deal)
        of_batches = late if late is not None and late.count else None
        if of_batches is not None and _own_batches.can_cut(of_batches, part):
            tell = handle.note_first_rows
            rows = _own_batches.own_rows(of_batches, part, notes, tell, noted)
            if not form[1]:
                rows = rows.map(unoptimized(lambda data, _: data))
            made = _batches_of(rows, part.deal, *form)
        else:
            batches = source.global_batches(part, handle, late)
            reader = late if of_batches is None else None
            made = _own_part(batches, part.deal, *form, notes, noted, reader)
        if late is not None:
            made = made.with_options(source.first.options())
        if _shuffles.has_rewritten_repeat(source.first):
            made = _shuffles.rewritten(made)
        if not part.first and source.is_fixed:
            whole[part.deal] = made
        return made

    def noting(deal: Deal) -> Callable[[tf.Tensor], tf.Tensor] | None:
        if num_rows is not None or deal.size == 1:
            return None  # they are known before
        return functools.partial(_note_unequal, handle, deal)

    def pass_over_unread() -> None:
        if running:
            source.pass_over(running[-1], handle.take_all_unread())

    # Shares of one `shuffle`, as of its `take` and its `skip`, draw orders in
    # turn, as iterators are made.
    stages = _shuffles.reshuffling(source.first) if source.is_fixed else []
    handle.unread = list(map(_unread_of, stages))
    handle.pass_over_unread = pass_over_unread

    notes = _passing.Notes()
    handle.taken.fetch = notes.fetch
    notes.leave_to(handle.taken.loops.add)
    spec = own(handle.upcoming()).element_spec

    def begin() -> tf.Tensor:
        unread = handle.take_unread()
        for other in [each for handles in handle.unread for each in handles]:
            other.pass_over_unread()
        part, number = handle.begin_numbered()
        notes.begin(number)
        source.begin(part.epoch)
        running[:] = [*running[-1:], own(part)]
        source.pass_over(running[-1], unread if source.is_fixed else 0)
        return running[-1]._variant_tensor

    @unoptimized
    def of_iteration(_: tf.Tensor) -> tf.data.Dataset:
        variant = call_for_variant(begin)
        return tf.data.experimental.from_variant(variant, spec)

    dataset = tf.data.Dataset.from_tensors(0).flat_map(of_iteration)
    if num_rows is not None and not deal.is_elastic:
        count = deal.num_steps(num_rows)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset if source.is_read_late else dataset.prefetch(2)


def _unread_of(stage: Any) -> dict[Handle, None]:
    """Returns the shares of a stage with iterators that nobody has read.

    They are held: what Python collects, and when, differs by rank.
    """
    if not hasattr(stage, "_hvd_unread"):
        stage._hvd_unread = {}
    handles: dict[Handle, None] = stage._hvd_unread
    return handles


def _own_part(
    batches: tf.data.Dataset,
    deal: Deal,
    is_static: bool,
    fills: bool,
    notes: _passing.Notes,
    note_rows: Callable[[tf.Tensor], tf.Tensor] | None,
    late: Rows | None,
) -> tf.data.Dataset:
    """Returns this rank's part of each batch.

    Args:
        batches: Those of all ranks.
        deal: Assigns the rows to the ranks.
        is_static: Whether all parts have the same shape.
        fills: Whether the parts have weights that tell what fills them.
        notes: Get what ranks compare of each batch.
        note_rows: Gets the rows of each batch.
        late: Reads rows; the batches are of their numbers.
    """

    @unoptimized
    def take(*batch: Any) -> Any:
        data = batch if len(batch) > 1 else batch[0]
        places, weights = own_rows(deal, num_rows_in(data))
        if is_static:
            places = tf.ensure_shape(places, [deal.batch_size])
            weights = tf.ensure_shape(weights, [deal.batch_size])
        if note_rows is not None:
            note_rows(num_rows_in(data))
        data = tf.nest.map_structure(lambda t: _rows.taken(t, places), data)
        if late is not None:
            return (data, weights) if fills else data
        return weighted(data, weights) if fills else data

    @unoptimized
    def take_noted(number: tf.Tensor, *batch: Any) -> Any:
        notes.note(number, batch)
        return take(*batch)

    if deal.size == 1:
        dataset = batches.map(take)
    else:
        dataset = notes.numbered(batches).map(take_noted)
    if deal.policy == "join":
        dataset = dataset.filter(has_rows)
    if late is None:
        return dataset
    # The last batch may be larger, where there are no weights.
    if late.read_many is not None or (deal.joins_rest and not is_static):
        read = late.for_elements(late.read_batch)
        if fills:
            read = _beside_weights(late.read_batch)
        dataset = dataset.map(read, num_parallel_calls=2, deterministic=True)
        return dataset.map(unoptimized(weighted)) if fills else dataset
    fetch, read = late.fetch, late.for_elements(late.read)
    if fills:
        fetch = fetch and _beside_weights(fetch)
        read = _beside_weights(late.read)
    if fetch is not None:
        dataset = dataset.map(fetch, num_parallel_calls=2, deterministic=True)
    rows = late.changed(dataset.unbatch(), read)
    return _batches_of(rows, deal, is_static, fills)


def _beside_weights(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return as_it_is(lambda data, weights: (change(data), weights))


def _batches_of(
    rows: tf.data.Dataset, deal: Deal, is_static: bool, fills: bool
) -> tf.data.Dataset:
    """Returns batches of this rank's rows; each has a weight if `fills`."""
    batches = rows.batch(deal.batch_size, drop_remainder=is_static)
    return batches.map(unoptimized(weighted)) if fills else batches


def _note_unequal(handle: Handle, deal: Deal, num_rows: tf.Tensor) -> tf.Tensor:
    """Tells the handle of a batch that ranks have unequal parts of."""

    def note(number: Any) -> Any:
        handle.own_loop.note_global(int(number), deal)
        return number

    is_equal = tf.equal(num_rows % deal.size, 0)
    if deal.policy == "pad":
        is_equal = tf.equal(num_rows, deal.global_size)
    return tf.cond(
        is_equal,
        lambda: num_rows,
        lambda: call_on_arrays(note, [num_rows], [tf.int64])[0],
    )


def shard_batches(
    batches: tf.data.Dataset, rank: int, size: int
) -> tf.data.Dataset:
    """Returns a rank's part of each batch of a dataset, in order of rank.

    A batch with fewer rows than ranks leaves some ranks without a row. A
    dataset that `as_sharded` has marked is returned unchanged.
    """
    options = batches.options().experimental_distribute
    off = tf.data.experimental.AutoShardPolicy.OFF
    if size == 1 or options.auto_shard_policy == off:
        return batches
    deal = Deal(
        rank=rank, size=size, batch_size=1, policy="split", has_weights=False
    )

    @unoptimized
    def take(*batch: Any) -> Any:
        data = batch if len(batch) > 1 else batch[0]
        places, _ = own_rows(deal, num_rows_in(batch))
        return tf.nest.map_structure(lambda t: _rows.taken(t, places), data)

    return without_tuner(batches.map(take).prefetch(2))
