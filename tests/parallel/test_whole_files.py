"""`hvd.data.files`: the global batches of one process, from whole files."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras.data import position

pytestmark = pytest.mark.thorough(4)

COUNTS = (13, 0, 7, 1, 22, 40, 5)  # of the files
NUM_ROWS = sum(COUNTS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    top = hvd.broadcast_object(str(tmp_path_factory.mktemp("files")))
    found = [str(pathlib.Path(top, f"{n}.gz")) for n in range(len(COUNTS))]
    if hvd.rank() == 0:
        number = iter(range(NUM_ROWS))
        for path, count in zip(found, COUNTS, strict=True):
            with tf.io.TFRecordWriter(path, "GZIP") as writer:
                for _ in range(count):
                    writer.write(b"%d" % next(number))
    hvd.barrier()
    return found


def read(name: Any) -> Any:
    return tf.data.TFRecordDataset(name, "GZIP").map(parse)


def parse(record: Any) -> Any:
    number = tf.strings.to_number(record)
    return tf.stack([number, number % 7]), number


def read_some(name: Any) -> Any:
    return read(name).filter(lambda _, y: y % 5 != 0)


class _Row(NamedTuple):
    x: Any
    y: Any


def read_weighted(name: Any) -> Any:
    return read(name).map(lambda x, y: (x, y, y % 3 + 1))


def steps_of(share: Any) -> list[list[int]]:
    """Returns the rows that count of all ranks in each step."""
    own = [
        [int(n) for n, w in zip(batch[1], weights_of(batch), strict=True) if w]
        for batch in share
    ]
    of_ranks = hvd.allgather_object(own)
    assert len({*map(len, of_ranks)}) == 1
    return [sorted(chain(*step)) for step in zip(*of_ranks, strict=True)]


def weights_of(batch: Any) -> Any:
    if len(batch) == 2:
        return np.ones(len(batch[1]))
    weights = batch[2].numpy()
    assert np.all((weights > 0) | np.signbit(weights))
    return weights


def expected(data: Any, first: int = 0, size: int = 0) -> list[list[int]]:
    """Returns the rows of each global batch, as one process has them."""
    rows = [int(y) for _, y, *_ in data][first:]
    size = size or 4 * hvd.size()
    return [sorted(rows[i : i + size]) for i in range(0, len(rows), size)]


@pytest.mark.parametrize(
    ("make", "shuffle", "num_lanes"),
    [
        pytest.param(read, False, 64, marks=pytest.mark.thorough),
        pytest.param(read, True, 3, marks=pytest.mark.thorough),
        (read_some, True, 64),
        (read_weighted, False, 3),
        pytest.param(read_weighted, True, 1, marks=pytest.mark.thorough),
    ],
)
def test_global_batches_are_those_of_one_process(
    make: Callable[[Any], Any], shuffle: bool, num_lanes: int, paths: list[str]
) -> None:
    options = {"shuffle": shuffle, "num_lanes": num_lanes}
    share = hvd.shard(hvd.data.files(paths, make, **options), batch_size=4)
    alone = hvd.data.files(paths, make, **options)
    count = sum(n % 5 != 0 for n in range(NUM_ROWS))
    for epoch in range(2):
        steps = expected(alone)
        assert steps_of(share) == steps
        rows = list(chain(*steps))
        assert len(set(rows)) == len(rows)
        assert len(rows) == (count if make is read_some else NUM_ROWS)
        if num_lanes == 64 and make is read and not (shuffle and epoch):
            # On any number of ranks.
            found = [int(y) for _, y in hvd.data.files(paths, make)]
            assert found[:6] == [43, 21, 44, 0, 45, 22]


def test_a_number_of_rows_for_all_ranks(paths: list[str]) -> None:
    data = hvd.data.files(paths, read)
    share = hvd.shard(data, global_batch_size=10, policy="drop")
    assert steps_of(share) == expected(hvd.data.files(paths, read), 0, 10)[:8]


@pytest.mark.parametrize("shuffle", [False, True])
def test_going_on_at_a_row(shuffle: bool, paths: list[str]) -> None:
    def make() -> Any:
        return hvd.data.files(paths, read, shuffle=shuffle, num_lanes=3)

    share = hvd.shard(make(), batch_size=4, elastic=True)
    handle = position.handle_of(share)
    assert handle is not None
    for epoch, row in ((1, 13), (0, 80), (1, 87), (2, 1)):
        alone = make()
        for _ in range(epoch):
            expected(alone)
        handle.seek(position.Position(epoch, row))
        assert steps_of(share) == expected(alone, row)


def test_going_on_changes_no_row_before(paths: list[str]) -> None:
    order = [int(y) for _, y in hvd.data.files(paths, read)]
    gone = tf.constant(order[:40], tf.float32)

    def check(x: Any, y: Any) -> Any:
        tf.debugging.assert_none_equal(y, gone)
        return x, y

    def read_checked(name: Any) -> Any:
        return read(name).map(check, tf.data.AUTOTUNE).prefetch(2)

    data = hvd.data.files(paths, read_checked)
    share = hvd.shard(data, batch_size=4, elastic=True)
    handle = position.handle_of(share)
    assert handle is not None
    handle.seek(position.Position(0, 40))
    found = sorted(chain(*steps_of(share)))
    assert found == sorted(order[40:])
    handle.seek(position.Position(0, 39))
    with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
        list(share)


def read_uneven(name: Any) -> Any:
    rows = tf.data.TFRecordDataset(name, "GZIP")
    uneven = rows.map(lambda row: (tf.strings.bytes_split(row), row))
    return uneven.filter(lambda _, row: True).map(lambda _, row: parse(row))


def test_rows_of_other_sizes_are_counted(paths: list[str]) -> None:
    data = hvd.data.files(paths, read_uneven)
    share = hvd.shard(data, batch_size=4)
    assert steps_of(share) == expected(hvd.data.files(paths, read))


def test_what_is_behind(paths: list[str]) -> None:
    def less(x: Any, y: Any) -> Any:
        return x, y - 1

    share = hvd.shard(hvd.data.files(paths, read).map(less), batch_size=4)
    assert steps_of(share) == expected(hvd.data.files(paths, read).map(less))


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows, lambda rows: rows.map(lambda row: row)],
    ids=["alone", "mapped"],
)
def test_rows_that_are_named_tuples(
    change: Callable[[Any], Any], paths: list[str]
) -> None:
    named = lambda name: read(name).map(_Row)  # noqa: E731
    plain, own = (hvd.data.files(paths, make) for make in (read, named))
    steps = steps_of(hvd.shard(change(own), batch_size=6))
    assert steps == steps_of(hvd.shard(plain, batch_size=6))


def test_files_that_are_shuffled_are_read_by_all(paths: list[str]) -> None:
    def make() -> Any:
        return hvd.data.files(paths, read).shuffle(20, seed=1)

    share = hvd.shard(make(), batch_size=4)
    assert steps_of(share) == expected(make())


def _names_read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found: list[bytes] = []

    def noted(name: Any) -> Any:
        name = tf.numpy_function(
            lambda n: (found.append(n), n)[1], [name], tf.string
        )
        return read(tf.ensure_shape(name, []))

    monkeypatch.setattr(f"{__name__}.read_noted", noted, raising=False)
    return found


def test_a_rank_reads_its_own_files_alone(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _names_read(monkeypatch)
    data = hvd.data.files(paths, globals()["read_noted"], num_rows=COUNTS)
    assert not names
    share = hvd.shard(data, batch_size=4)
    list(share)
    of_ranks = hvd.allgather_object(sorted({*names}))
    read_once = [path for rank in of_ranks for path in rank]
    own = {path.encode() for path, n in zip(paths, COUNTS, strict=True) if n}
    # Copies that fill come from the first file of the first lane.
    assert set(read_once) == own
    assert len(read_once) <= len(own) + hvd.size() - 1
    hvd.barrier()


def test_fit_is_that_of_one_process(paths: list[str]) -> None:
    def trained(data: Any) -> Any:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4))
        model.compile(optimizer, "mse", metrics=["mae"])
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        callbacks.append(hvd.callbacks.MetricAverageCallback())
        history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return model.get_weights(), history.history

    files = hvd.data.files(paths, read, num_lanes=3)
    x, y = (
        np.array(part) for part in zip(*files.as_numpy_iterator(), strict=True)
    )
    found = trained(hvd.shard(files, batch_size=4))
    arrays = trained(hvd.shard((x, y), batch_size=4))
    kt.assert_close(found[0], arrays[0], 1e-4)
    for name, values in found[1].items():
        np.testing.assert_allclose(values, arrays[1][name], rtol=1e-4)


def test_files_with_fewer_rows_than_counted(paths: list[str]) -> None:
    counts = [max(count + 1, 1) for count in COUNTS]
    share = hvd.shard(
        hvd.data.files(paths, read, num_rows=counts), batch_size=4
    )
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(share)
    hvd.barrier()


def test_what_is_refused(paths: list[str]) -> None:
    with pytest.raises(ValueError, match="`num_rows` must have a number for"):
        hvd.data.files(paths, read, num_rows=[1])
    with pytest.raises(ValueError, match="`num_lanes` must be"):
        hvd.data.files(paths, read, num_lanes=0)
    with pytest.raises(ValueError, match="`files` must have rows"):
        hvd.data.files(paths, lambda name: read(name).take(0))
    data = hvd.data.files(paths, read)
    for policy in ("pad", "join"):
        with pytest.raises(ValueError, match="'split' or 'drop'"):
            hvd.shard(data, batch_size=4, policy=policy)
    data = hvd.data.files(paths, lambda name: read(name).map(lambda x, y: y))
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"must be \(x, y\)"):
            hvd.shard(data, batch_size=4)


def test_the_order_is_told(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "info", lines.append)
    hvd.shard(hvd.data.files(paths, read, num_lanes=1), batch_size=4)
    found = [line for line in lines if "whole files" in line]
    is_told = hvd.rank() == 0 and hvd.size() > 1
    assert len(found) == is_told
    assert all("Only 1 of" in line for line in found)


def test_files_of_other_file_systems() -> None:
    """Each process has a `ram://` of its own, with the same files."""
    for file in range(3):
        path = f"ram://whole/{file}.gz"
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for number in range(5 * file, 5 * file + 5):
                writer.write(b"%d" % number)
    share = hvd.shard(hvd.data.files("ram://whole/*.gz", read), batch_size=2)
    assert sorted(chain(*steps_of(share))) == list(range(15))
