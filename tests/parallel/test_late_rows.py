"""Each row of a tf.data pipeline is read and changed on one rank alone."""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras.data import _datasets, _sources, _stores, position

pytestmark = pytest.mark.thorough(4)

Make = Callable[[], Any]
from_slices = tf.data.Dataset.from_tensor_slices

NUM_ROWS = 53
ROWS = np.arange(NUM_ROWS * 2, dtype=np.float32).reshape(NUM_ROWS, 2)
WIDE = np.repeat(ROWS, 20, axis=1)


def work(x: Any, *others: Any) -> Any:
    """Does something that is put off: no cheap op."""
    made = tf.math.cumsum(x)
    return (made, *others) if others else made


def centered(x: Any, *others: Any) -> Any:
    return (x - tf.reduce_mean(x, 0), *others) if others else x


def nested(x: Any, y: Any) -> Any:
    return collections.OrderedDict(of=(x,)), y


def of_nested(x: Any, y: Any) -> Any:
    return centered(x["of"][0], y)


def to_vector(text: Any) -> Any:
    return tf.strings.to_number(text)[None]


def labelled() -> Any:
    return from_slices((WIDE, np.arange(NUM_ROWS))).map(work)


def of_numbers() -> Any:
    rows = from_slices(ROWS).map(work, num_parallel_calls=tf.data.AUTOTUNE)
    return rows.shuffle(20, seed=3).repeat(2).skip(3).take(90)


def of_records() -> Any:
    records = from_slices([f"{number} 1" for number in range(47)])
    records = records.filter(lambda record: True)  # nobody knows how many
    rows = records.map(tf.strings.split).map(tf.strings.to_number)
    return rows.map(lambda row: (row, row[0])).shuffle(9, seed=4)


def of_lines() -> Any:
    """A source that has no name among tf.data's stages."""
    lines = tf.data.TextLineDataset([__file__]).shuffle(9, seed=1).take(47)
    return lines.map(lambda line: (tf.strings.split(line, "a")[0], 1.0))


def of_zipped() -> Any:
    pairs = {"b": from_slices(WIDE).map(work), "a": tf.data.Dataset.range(53)}
    rows = tf.data.Dataset.zip(pairs).enumerate().shuffle(9, seed=2)
    return rows.map(lambda n, row: (row["b"], row["a"] + n))


def of_both() -> Any:
    reversed_rows = from_slices(WIDE[::-1].copy()).map(work)
    rows = from_slices(WIDE).map(work).concatenate(reversed_rows)
    return rows.shuffle(200, seed=2, reshuffle_each_iteration=False)


def of_global_seed() -> Any:
    tf.random.set_seed(5)
    return labelled().shuffle(20)


def of_other_sizes() -> Any:
    """Rows that fit together after the last `map` alone."""
    spec = tf.TensorSpec([None], tf.float32)
    rows = tf.data.Dataset.from_generator(
        lambda: (row[: 1 + number % 2] for number, row in enumerate(ROWS)),
        output_signature=spec,
    )
    return rows.map(lambda row: (tf.cumsum(row)[:1], tf.cumsum(row)[0]))


def of_ragged() -> Any:
    rows = tf.ragged.constant([[1.0] * (1 + n % 4) for n in range(NUM_ROWS)])
    data = from_slices((rows, np.arange(NUM_ROWS)))
    return data.map(
        lambda row, n: (tf.cumsum(tf.concat([row, tf.zeros(4)], 0)[:4]), n)
    )


def of_single_parts() -> Any:
    names = from_slices(([str(n) for n in range(NUM_ROWS)],))
    return names.map(lambda name: (tf.strings.to_number(name), 1.0))


def of_single_results() -> Any:
    return from_slices(ROWS).map(lambda row: (tf.cumsum(row),))


def of_sampled() -> Any:
    parts = [labelled(), labelled().shuffle(9, seed=1).take(30)]
    return tf.data.Dataset.sample_from_datasets(parts, [0.6, 0.4], seed=7)


def of_chosen() -> Any:
    choice = tf.data.Dataset.range(2).repeat(25)
    pair = [labelled().repeat(), labelled().skip(9)]
    return tf.data.Dataset.choose_from_datasets(pair, choice)


def of_windows() -> Any:
    """As `keras.utils.timeseries_dataset_from_array` makes them."""
    whole = tf.data.Dataset.from_tensors(WIDE).repeat()
    numbers = tf.data.Dataset.range(NUM_ROWS - 4)
    pairs = tf.data.Dataset.zip((whole, numbers))
    return pairs.map(lambda every, n: tf.cumsum(tf.gather(every, [n, n + 4])))


def of_texts() -> Any:
    """Batches that are changed, of rows that are not."""
    texts = [f"{n} {n % 5}" for n in range(NUM_ROWS)]
    rows = from_slices((texts, WIDE)).shuffle(20, seed=2).batch(6)

    def numbered(texts: Any, wide: Any) -> Any:
        parts = tf.strings.bytes_split(texts)
        return parts.to_tensor(shape=[None, 4]), wide

    return rows.map(numbered)


def of_zipped_batches() -> Any:
    pairs = {"b": labelled().batch(6), "a": from_slices(ROWS).batch(6)}
    rows = tf.data.Dataset.zip(pairs).enumerate().take(8)
    return rows.map(
        lambda n, row: (*row["b"], row["a"] + tf.cast(n, tf.float32))
    )


# On other numbers of ranks a policy changes nothing of how rows are read.
POLICIES = [
    "split",
    *(
        pytest.param(policy, marks=pytest.mark.thorough)
        for policy in ("pad", "join", "drop")
        if hvd.size() == 2
    ),
]

CASES: dict[str, tuple[Make, bool]] = {
    "numbers": (of_numbers, False),
    "records": (of_records, False),
    "lines": (of_lines, False),
    "zip": (of_zipped, False),
    "concatenate": (of_both, False),
    "global seed": (of_global_seed, False),
    "single parts": (of_single_parts, False),
    "single results": (of_single_results, False),
    "cache": (lambda: labelled().cache().shuffle(99, seed=1), False),
    "unbatch": (lambda: labelled().batch(4).unbatch().map(work), False),
    "unbatch, nested": (
        lambda: labelled().batch(4).map(nested).unbatch().map(of_nested),
        False,
    ),
    "batches, nested": (lambda: labelled().batch(7).map(nested), True),
    "cut anew, nested": (
        lambda: labelled().batch(4).map(nested).rebatch(6).map(of_nested),
        True,
    ),
    "batches": (lambda: labelled().batch(7).prefetch(2), True),
    "batches, dropped": (lambda: labelled().batch(7, True), True),
    "changed batches": (
        lambda: labelled().shuffle(20, seed=3).batch(7).map(centered),
        True,
    ),
    "cached, shuffled batches": (
        lambda: labelled().batch(4).cache().shuffle(9, seed=3).map(centered),
        True,
    ),
    "sampled": (of_sampled, False),
    "chosen": (of_chosen, False),
    "windows": (of_windows, False),
    "a shard": (lambda: labelled().shuffle(9, seed=1).shard(3, 1), False),
    "a known length": (
        lambda: labelled().apply(tf.data.experimental.assert_cardinality(53)),
        False,
    ),
    "unbatched again": (lambda: labelled().batch(8).unbatch().batch(7), True),
    "cut anew": (lambda: labelled().batch(4).rebatch(6).map(centered), True),
    "first batches": (
        lambda: labelled().batch(4).map(centered).skip(2).take(9),
        True,
    ),
    "batches again": (
        lambda: labelled().batch(6).map(centered).repeat(3).skip(1),
        True,
    ),
    "batches of two sizes": (
        lambda: labelled().batch(7).concatenate(labelled().batch(4)),
        True,
    ),
    "texts": (of_texts, True),
    "zipped batches": (of_zipped_batches, True),
    "large batches": (lambda: labelled().batch(30).map(centered), True),
    "batches without targets": (
        lambda: from_slices(ROWS).map(work).batch(5, True).map(centered),
        True,
    ),
}


def taken(make: Make, **options: Any) -> Any:
    """Returns three passes over a share, and its element spec."""
    try:
        share = hvd.shard(make(), batch_size=5, **options)
    except ValueError as error:
        return str(error)
    passes = [
        [
            [part.numpy().tolist() for part in tf.nest.flatten(batch)]
            for batch in share
        ]
        for _ in range(3)
    ]
    return passes, share.element_spec


QUICK = (
    "batches of two sizes",
    "batches without targets",
    "cached, shuffled batches",
    "changed batches",
    "concatenate",
    "cut anew",
    "lines",
    "numbers",
    "records",
    "sampled",
    "texts",
    "unbatch",
    "unbatch, nested",
    "windows",
    "zip",
)


@pytest.mark.parametrize("case", thorough_except(CASES, *QUICK))
@pytest.mark.parametrize("policy", POLICIES)
def test_late_rows_are_the_same(
    case: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, batched = CASES[case]
    options = {"policy": policy, "batched": batched}
    found = _sources.late_rows_of(make(), batched=batched, is_fixed=True)
    assert found is not None
    late = taken(make, **options)
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert late == taken(make, **options)


@pytest.mark.parametrize("batched", [False, True])
def test_a_rank_reads_its_own_files_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"{number:02}" for number in range(8 * hvd.size())]
    for name in names[hvd.rank() * 2 :: hvd.size() * 2]:
        number = int(name)
        for own in (number, number + 1):  # the rows of a step: 2 of each rank
            pathlib.Path(f"{own:02}").write_text(str(own))
    files = from_slices(names).map(tf.io.read_file)
    rows = files.map(lambda text: (tf.strings.to_number(text), 0))
    data = rows.batch(3) if batched else rows
    share = hvd.shard(data, batch_size=2, batched=batched)
    own = [float(x) for batch in share for x in batch[0]]
    assert own == [
        float(number)
        for number in range(len(names))
        if number // 2 % hvd.size() == hvd.rank()
    ]
    assert len(os.listdir()) == len(names) // hvd.size()


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
@pytest.mark.parametrize("kind", ["wide", "names"])
def test_other_arrays_are_told(kind: str) -> None:
    rows: Any = WIDE if kind == "wide" else [str(n) for n in range(12)]
    if hvd.rank() == hvd.size() - 1:
        rows = rows[::-1]
    data = from_slices(rows)
    data = data.map(work if kind == "wide" else to_vector)
    with pytest.raises(hvd.MismatchError, match=r"same (data|rows)"):
        _train_on(data.map(lambda x: (x, 1.0)))


def _train_on(data: Any) -> None:
    share = hvd.shard(data, batch_size=2)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(share, verbose=0)


def test_going_on_reads_no_row_before(tmp_path: pathlib.Path) -> None:
    names = [str(tmp_path / f"{number}") for number in range(12)]
    data = from_slices(names).shuffle(9, seed=1, reshuffle_each_iteration=False)
    order = [name.decode() for name in data.as_numpy_iterator()]
    rows = data.map(lambda name: (tf.io.read_file(name), name))
    share = hvd.shard(rows, batch_size=1, elastic=True)
    for name in names:
        pathlib.Path(name).write_text(name)
    first = [batch[1][0].numpy().decode() for batch in share.take(2)]
    handle = position.handle_of(share)
    assert handle is not None
    there = handle.position_after(2)
    for name in order[: 2 * hvd.size()]:
        pathlib.Path(name).unlink(missing_ok=True)
    hvd.barrier()
    handle.seek(there)
    rest = [name.decode() for batch in share for name in batch[1].numpy()]
    rank, size = hvd.rank(), hvd.size()
    assert first == order[rank : 2 * size : size]
    assert rest[: 12 // size - 2] == order[2 * size + rank :: size]


def test_a_random_map_runs_on_all_ranks() -> None:
    rows = from_slices(WIDE).map(with_noise)
    assert _sources.late_rows_of(rows, batched=False, is_fixed=True) is None


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("", labelled),
        ("", lambda: from_slices(ROWS).filter(lambda row: True)),
        ("", lambda: from_slices(["a"]).interleave(tf.data.TextLineDataset)),
        ("`filter`", lambda: labelled().filter(lambda *_: True)),
        ("a generator", of_other_sizes),
        ("`flat_map`", lambda: labelled().flat_map(each_twice)),
        ("`scan`", lambda: labelled().scan(0, lambda state, row: (state, row))),
        ("a `map` that", lambda: from_slices(WIDE).map(with_noise)),
        ("`window`", lambda: labelled().window(3)),
        ("not alike", of_ragged),
        (
            "a `map` of b",
            lambda: labelled().batch(4).shuffle(9).take(2).map(centered),
        ),
    ],
)
def test_what_has_all_ranks_do_all_is_named(what: str, make: Make) -> None:
    batched = what.endswith("of b")
    source = _datasets.Source(lambda _: make(), batched=batched, is_fixed=True)
    found = source.what_blocks()
    assert what in found
    assert bool(what) == bool(found)


def each_twice(*row: Any) -> Any:
    return tf.data.Dataset.from_tensors(row).repeat(2)


def with_noise(row: Any) -> Any:
    return row + tf.random.uniform([])


def test_cheap_work_is_not_put_off() -> None:
    rows = from_slices(ROWS).map(lambda row: tf.cast(row, tf.float32) / 255)
    assert _sources.late_rows_of(rows, batched=False, is_fixed=True) is None


@pytest.mark.parametrize("make", [of_other_sizes, of_ragged])
def test_what_cannot_wait_is_read_as_it_comes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taken(make)
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert not isinstance(found, str)
    assert found == taken(make)


def test_a_cache_that_was_not_filled_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def passes() -> list[Any]:
        rows = labelled().shuffle(99, seed=1).cache()
        share = hvd.shard(rows, batch_size=1)  # read ahead: not all
        return [
            [batch[1].numpy().tolist() for batch in share.take(count)]
            for count in (2, 3, 2)
        ]

    late = passes()
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert late == passes()


def test_a_cache_in_a_file_is_that_of_a_rank(tmp_path: pathlib.Path) -> None:
    """A later job reads it, and no row of before."""
    names = [str(tmp_path / f"{number}") for number in range(12)]

    def rows() -> Any:
        data = from_slices(names).shuffle(9, seed=1)
        texts = data.map(lambda name: (tf.io.read_file(name), name))
        texts = texts.cache(str(tmp_path / "kept")).shuffle(9, seed=2)
        return hvd.shard(texts, batch_size=1, policy="drop")

    for number, name in enumerate(names):
        pathlib.Path(name).write_text(str(number))
    share = rows()
    passes = [[b[0][0].numpy() for b in share] for _ in range(20)]
    own = hvd.allgather_object(passes[0])
    assert {int(text) for each in own for text in each} == set(range(12))
    for name in names:
        pathlib.Path(name).unlink()
    _stores._stores.clear()
    assert [b[0][0].numpy() for b in rows()] == passes[0]
    assert os.listdir(tmp_path) == [f"kept.rank-{hvd.rank()}-of-{hvd.size()}"]


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_other_arrays_in_a_function_are_told() -> None:
    table = tf.constant(WIDE + 100 * (hvd.rank() == hvd.size() - 1))
    rows = tf.data.Dataset.range(NUM_ROWS)
    rows = rows.map(lambda n: (tf.cumsum(tf.gather(table, n)), 1.0))
    with pytest.raises(hvd.MismatchError, match="same data"):
        hvd.shard(rows, batch_size=2)


def test_fewer_rows_than_ranks_without_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def few() -> Any:
        return from_slices(["1", "2"]).filter(is_known).map(to_vector)

    found = taken(few)
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert found == taken(few)


def is_known(text: Any) -> Any:
    return tf.strings.length(text) > 0


@pytest.mark.parametrize("policy", ["pad", "split"])
def test_changed_batches_go_on(policy: str) -> None:
    """The first pass can be cut late, the second one not, and the reverse."""
    count = 8 * hvd.size()
    for rest in (4 * hvd.size(), 3):
        data = from_slices((WIDE[:count], np.arange(count))).map(work)
        data = data.batch(7).map(centered)
        share = hvd.shard(
            data, batch_size=4, policy=policy, batched=True, elastic=True
        )
        handle = position.handle_of(share)
        assert handle is not None
        assert len(list(share)) == 2
        there = position.Position(0, count - rest, handle._running.first_rows)
        handle.seek(there)
        rows = np.concatenate([batch[1].numpy() for batch in share])
        of_all = np.concatenate(hvd.allgather_object(rows))
        assert set(of_all) == set(range(count - rest, count))


def test_going_on_behind_many_rows() -> None:
    rows = tf.data.Dataset.range(9000).map(lambda n: tf.cumsum(n[None] * 2))
    share = hvd.shard(rows, batch_size=1, elastic=True)
    handle = position.handle_of(share)
    assert handle is not None
    first = int(next(iter(share))[0, 0])
    # Each rank has a row of the last batches: 9,000 - 8,980 is enough.
    for there in (4095, 4096, 8192, 8980):
        handle.seek(position.Position(0, there, handle._running.first_rows))
        got = int(next(iter(share))[0, 0])
        assert got == first + 2 * there


def test_going_on_in_another_order_is_refused() -> None:
    rows = from_slices(WIDE).shuffle(53, seed=1).map(work)
    share = hvd.shard(rows, batch_size=1, elastic=True)
    handle = position.handle_of(share)
    assert handle is not None
    next(iter(share))
    handle.seek(position.Position(0, 9, handle._running.first_rows))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another row 0"):
        list(share)
