"""Shares have each row once, and all ranks have equally many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
SIZE = 2  # rows of a rank's batch


def as_array(rows: np.ndarray) -> dict[str, Any]:
    return {"data": (rows, rows * 10)}


def as_dataset(rows: np.ndarray) -> dict[str, Any]:
    return {"data": tf.data.Dataset.from_tensor_slices((rows, rows * 10))}


def as_unknown(rows: np.ndarray) -> dict[str, Any]:
    return {"data": as_dataset(rows)["data"].filter(lambda x, y: True)}


def as_batches(rows: np.ndarray) -> dict[str, Any]:
    return {"data": as_unknown(rows)["data"].batch(3), "batched": True}


def steps_of_all(dataset: Any) -> list[list[list[np.ndarray]]]:
    """Returns all ranks' batches by rank and step, as lists of arrays."""
    own = [[np.asarray(part) for part in batch] for batch in dataset]
    gathered: list[Any] = hvd.allgather_object(own)
    return gathered


def global_batches(policy: str, num_rows: int) -> list[list[int]]:
    """Returns the batches that one process would get."""
    full = SIZE * hvd.size()
    rows = list(range(num_rows))
    batches = [rows[i : i + full] for i in range(0, num_rows, full)]
    if len(batches[-1]) < full and policy == "drop":
        batches.pop()
    return batches


@pytest.mark.thorough(4)
@pytest.mark.parametrize("policy", ["split", "pad", "drop", "join"])
@pytest.mark.parametrize(
    "source", [as_array, as_dataset, as_unknown, as_batches]
)
def test_each_row_is_once_in_the_batches_of_one_process(
    source: Callable[..., dict[str, Any]], policy: str
) -> None:
    full = SIZE * hvd.size()
    for rest in {1, full - 1} | ({0} if source == as_array else set()):
        num_rows = 2 * full + rest
        rows = np.arange(num_rows)
        share = hvd.shard(**source(rows), batch_size=SIZE, policy=policy)
        by_rank = steps_of_all(share)
        expected = global_batches(policy, num_rows)
        num_steps = [len(steps) for steps in by_rank]
        if policy != "join":
            assert num_steps == [len(expected)] * hvd.size()
        if source in (as_array, as_dataset):
            assert int(share.cardinality()) == num_steps[hvd.rank()]
        for step, wanted in enumerate(expected):
            parts = [steps[step] for steps in by_rank if step < len(steps)]
            found = np.concatenate([part[0] for part in parts])
            weight = np.ones(len(found))
            if len(parts[0]) == 3:
                weight = np.concatenate([part[2] for part in parts])
            is_known = source in (as_array, as_dataset)
            if policy == "pad":
                assert all(len(part[0]) == SIZE for part in parts)
                assert (len(parts[0]) == 3) == (rest > 0 or not is_known)
            else:
                assert len({len(part[0]) // 2 for part in parts}) <= 2
            # Filling has the weight -0.0.
            assert np.signbit(weight[weight == 0]).all()
            assert found[weight > 0].tolist() == wanted
            for part in parts:
                np.testing.assert_array_equal(part[1], part[0] * 10)


def test_all_ranks_shuffle_alike_and_anew_in_each_epoch() -> None:
    num_rows = 5 * SIZE * hvd.size() + 1
    rows = np.arange(num_rows)

    def epochs(seed: int) -> list[list[int]]:
        tf.random.set_seed(hvd.rank())  # users do this
        share = hvd.shard(
            (rows, rows), batch_size=SIZE, shuffle=True, seed=seed
        )
        found = []
        for _ in range(2):
            by_rank = steps_of_all(share)
            found.append(
                [
                    int(x)
                    for steps in by_rank
                    for rows, *others in steps
                    for x, weight in zip(
                        rows,
                        others[1] if others[1:] else np.ones(len(rows)),
                        strict=True,
                    )
                    if weight > 0
                ]
            )
        return found

    first, second = epochs(3)
    assert sorted(first) == sorted(second) == rows.tolist()
    assert first != second
    assert epochs(3) == [first, second]
    assert epochs(4)[0] != first


def weights_after_fit(data: Any, optimizer: Any) -> list[np.ndarray]:
    model = kt.build(kt.functional_model)
    model.compile(optimizer, "mse")
    model.fit(data, verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.thorough(4)
@pytest.mark.parametrize("has_weights", thorough_except([False, True], True))
def test_training_with_padding_equals_one_process(has_weights: bool) -> None:
    data: tuple = kt.regression_data(3 * kt.BATCH + 5)
    if has_weights:
        data = (*data, np.linspace(0.5, 2.0, len(data[0]), dtype=np.float32))
    dataset = tf.data.Dataset.from_tensor_slices(data)
    plain = dataset.batch(kt.BATCH)
    expected = weights_after_fit(plain, keras.optimizers.Adam(0.01))
    share = hvd.shard(
        dataset if has_weights else data,
        batch_size=kt.BATCH // hvd.size(),
        policy="pad",
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    weights = weights_after_fit(share, optimizer)
    kt.assert_close(weights, expected, 2e-5)
    kt.assert_equal_on_all_ranks(weights)


def test_evaluate_and_predict_equal_one_process() -> None:
    x, y = kt.regression_data(3 * kt.BATCH + 5)
    model = kt.build(kt.functional_model)
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.R2Score()])
    options = {"verbose": 0, "return_dict": True}
    expected = model.evaluate(x, y, **options)
    batch_size = kt.BATCH // hvd.size()
    share = hvd.shard((x, y), batch_size=batch_size)
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    logs = model.evaluate(share, callbacks=callbacks, **options)
    for key, value in expected.items():
        np.testing.assert_allclose(logs[key], value, rtol=2e-5)
    wanted = model.predict(x, verbose=0)
    own = model.predict(hvd.shard(x, batch_size=batch_size), verbose=0)
    found = np.concatenate(hvd.allgather_object(own))
    np.testing.assert_allclose(
        np.sort(found, axis=0), np.sort(wanted, axis=0), rtol=1e-5, atol=1e-6
    )


class Batches(keras.utils.PyDataset):
    def __init__(self, rows: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows
        self.epochs_ended = 0

    def __len__(self) -> int:
        return -(-len(self.rows) // SIZE)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rows[index * SIZE :][:SIZE]
        return rows, rows * 10

    def on_epoch_end(self) -> None:
        self.epochs_ended += 1


@pytest.mark.parametrize("policy", ["split", "pad", "drop", "join"])
def test_batches_of_a_py_dataset_are_dealt_out(policy: str) -> None:
    rest = hvd.size() // 2 + 1  # batches
    num_rows = SIZE * (6 * hvd.size() + rest % hvd.size())
    data = Batches(np.arange(num_rows))
    share = hvd.shard(data, policy=policy, shuffle=True)
    orders = []
    for epoch in range(2):
        by_rank = steps_of_all(share)
        share.on_epoch_end()
        assert data.epochs_ended == epoch + 1
        num_steps = {len(steps) for steps in by_rank}
        assert num_steps == {len(share)} or policy == "join"
        found = [
            int(row)
            for steps in by_rank
            for x, _, *weight in steps
            for row in x
            if not weight or weight[0][0] > 0
        ]
        orders.append(found)
        if policy == "drop":
            assert len(set(found)) == len(found) == 6 * SIZE * hvd.size()
        else:
            assert sorted(found) == list(range(num_rows))
    assert orders[0] != orders[1]


def test_fit_on_a_py_dataset_equals_one_process() -> None:
    class Rows(Batches):
        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            own = slice(index * share_size, (index + 1) * share_size)
            return x[own], y[own]

        def __len__(self) -> int:
            return len(x) // share_size

    share_size = kt.BATCH // hvd.size()
    x, y = kt.regression_data(2 * kt.BATCH + share_size)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    share = hvd.shard(Rows(x, workers=2), policy="pad")
    weights = weights_after_fit(share, optimizer)
    plain = kt.whole_batches(x, y)
    expected = weights_after_fit(plain, keras.optimizers.Adam(0.01))
    kt.assert_close(weights, expected, 2e-5)


def test_a_loop_may_end_with_join() -> None:
    rows = np.ones(3 * hvd.size() * SIZE + 1, np.float32)
    total = tf.Variable(0.0)

    @tf.function
    def step(batch: tf.Tensor) -> None:
        total.assign_add(hvd.allreduce(tf.reduce_sum(batch), hvd.Sum))

    for batch in hvd.shard(rows, batch_size=SIZE, policy="join"):
        step(batch)
    hvd.join()
    # A rank that has joined does not get the later sums.
    assert max(hvd.allgather_object(float(total))) == len(rows)


def test_structures_are_sharded_over_a_process_set(
    sets: dict[str, hvd.ProcessSet],
) -> None:
    own = sets["parity"]
    rows = np.arange(8 * own.size(), dtype=np.float32)
    data = ({"a": rows, "b": [rows, rows.tolist()]}, rows)
    share = hvd.shard(data, batch_size=8, process_set=own)
    ((inputs, targets),) = list(share)
    wanted = rows[own.rank() * 8 :][:8].tolist()
    assert targets.numpy().tolist() == wanted
    assert inputs["b"][1].numpy().tolist() == wanted
    assert targets.shape == [8]


def test_the_tuner_is_off_unless_asked_for() -> None:
    rows = np.arange(8.0)
    data = tf.data.Dataset.from_tensor_slices(rows)
    for source in (rows, data):
        share = hvd.shard(source, batch_size=2)
        assert share.options().autotune.enabled is False
    share = hvd.shard(data, batch_size=2, autotune=True)
    assert share.options().autotune.enabled is not False


UNEQUAL = {
    "batch_size": (
        "batch_size=2 on rank 0; batch_size=3 on rank 1",
        "Pass the same `batch_size` on all ranks.",
    ),
    "length": ("64 rows on rank 0; 65 rows on rank 1", "not a share of them"),
    "dtype": (
        "array 0: int64 of shape [64] on rank 0; float64",
        "all the data",
    ),
    "rows": (
        "array 0 (int64 of shape [64]), whose",
        "np.random.default_rng(1)",
    ),
    "shuffled": ("`shuffle` without a seed", "shuffle(buffer_size, seed=1)"),
    "function": ("`shuffle` without a seed", "the same dataset of an epoch"),
    "kind": ("arrays on rank 0; tf.data.Dataset on ", "all the data"),
}


@needs_peers
@pytest.mark.parametrize("what", UNEQUAL)
def test_unequal_arguments_or_data_are_an_error_on_all_ranks(what: str) -> None:
    rank = hvd.rank()
    data: Any = np.arange(64 + (rank if what == "length" else 0))
    if what == "rows":
        data = data + rank
    elif what == "dtype":
        data = data.astype(np.float64 if rank else np.int64)
    elif what in ("shuffled", "function"):
        tf.random.set_seed(rank)
        rows = tf.data.Dataset.from_tensor_slices(data).shuffle(64)
        data = rows if what == "shuffled" else lambda epoch: rows
    elif what == "kind" and rank:
        data = tf.data.Dataset.from_tensor_slices(data)
    batch_size = 2 + (rank if what == "batch_size" else 0)
    with pytest.raises(hvd.MismatchError) as raised:
        hvd.shard(data, batch_size=batch_size)
    for words in ("All ranks must shard the same data", *UNEQUAL[what]):
        assert words in str(raised.value)
    # A seed of tf.data is no cure for arrays.
    is_dataset = what in ("shuffled", "function")
    assert ("buffer_size" in str(raised.value)) == is_dataset


@pytest.mark.parametrize(
    "share",
    [
        lambda: hvd.shard(np.ones(8), batch_size=1),
        lambda: hvd.shard(Batches(np.ones(8))),
        lambda: hvd.shard(tf.data.Dataset.range(8), batch_size=1).prefetch(1),
    ],
)
def test_a_share_is_not_dealt_again(share: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"has returned\. Call it"):
        hvd.shard(share(), batch_size=1)


def test_a_share_is_not_split_for_validation() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = hvd.shard((np.ones((8, 2)), np.ones(8)), batch_size=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="Split the whole arrays"):
            model.fit(data, validation_split=0.5)
    targets = hvd.shard(np.ones(8), batch_size=1)
    with pytest.raises(ValueError, match=r"shared in one call.*and `y` beside"):
        model.fit(data, targets)


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [
        (None, {}, TypeError),
        (iter([1]), {}, TypeError),
        (lambda: iter([1]), {}, TypeError),
        (lambda epoch: (yield epoch), {}, TypeError),
        (lambda epoch: np.ones(8), {}, TypeError),
        ((np.ones(3), np.ones(4)), {}, ValueError),
        (np.ones(()), {}, ValueError),
        (np.ones(8), {"batch_size": None}, ValueError),
        (np.ones(8), {"batch_size": 0}, ValueError),
        (np.ones(8), {"policy": "even"}, ValueError),
        (np.ones(8), {"seed": -1}, ValueError),
        (np.ones(8), {"collate": list}, ValueError),
        (np.ones(8), {"batched": True}, ValueError),
        (np.ones(0), {}, ValueError),
        (np.ones(1), {"policy": "drop"}, ValueError),
        (tf.data.Dataset.range(8), {"shuffle": True}, ValueError),
        (Batches(np.ones(8)), {}, ValueError),
    ],
)
def test_bad_arguments_raise(
    data: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        hvd.shard(data, **{"batch_size": 2, **options})


def ragged_of(rows: np.ndarray) -> Any:
    """Row i has i % 3 numbers."""
    values = [[int(row)] * (row % 3) for row in rows]
    return tf.ragged.constant(values, tf.int64, ragged_rank=1)


def sparse_of(rows: np.ndarray) -> Any:
    return tf.sparse.from_dense(np.stack([0 * rows, rows, rows % 2], axis=1))


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize("has_targets", [True, False])
@pytest.mark.parametrize(
    "policy", thorough_except(["split", "pad", "drop", "join"], "split", "pad")
)
@pytest.mark.parametrize("batched", thorough_except([False, True], False))
@pytest.mark.parametrize("make", [ragged_of, sparse_of])
def test_ragged_and_sparse_tensors_are_shared_like_dense_ones(
    make: Any, batched: bool, policy: str, has_targets: bool
) -> None:
    if policy == "pad" and not has_targets:
        pytest.skip("needs a place for weights")

    def share(x: Any) -> list[Any]:
        data: Any = (x, rows) if has_targets else {0: x, 1: rows}
        dataset = tf.data.Dataset.from_tensor_slices(data)
        return list(
            hvd.shard(
                dataset.batch(3) if batched else dataset,
                batch_size=SIZE,
                policy=policy,
                batched=batched,
            )
        )

    rows = np.arange(2 * SIZE * hvd.size() + 1)
    for batch, wanted in zip(share(make(rows)), share(rows), strict=True):
        own = wanted[0].numpy()
        assert batch[1].numpy().tolist() == own.tolist()
        if make is ragged_of:
            assert batch[0].to_list() == make(own).to_list()
        else:
            found = tf.sparse.to_dense(batch[0])
            np.testing.assert_array_equal(found, tf.sparse.to_dense(make(own)))


@pytest.mark.ranks(2)
def test_a_loss_without_rows_is_refused_where_rows_fill_a_batch() -> None:
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer("sgd"),
        lambda y_true, y_pred: keras.ops.mean((y_true - y_pred) ** 2),
    )
    x, y = kt.regression_data()
    model.fit(hvd.shard((x[:8], y[:8]), batch_size=2), verbose=0)
    share = hvd.shard((x[:7], y[:7]), batch_size=2, policy="pad")
    with pytest.raises(ValueError, match="must return a value for each row"):
        model.fit(share, verbose=0)


def ragged_lengths(count: int) -> tf.data.Dataset:
    """Returns rows of several lengths; row i begins with i."""

    def rows() -> Any:
        for i in range(count):
            yield np.array([i, *[1] * (i % 3)], np.float32)

    spec = tf.TensorSpec([None], tf.float32)
    return tf.data.Dataset.from_generator(rows, output_signature=spec)


@pytest.mark.parametrize("has_targets", [False, True])
@pytest.mark.parametrize("kind", ["buckets", "padded"])
@pytest.mark.parametrize("policy", ["split", "pad", "drop"])
def test_batches_of_several_lengths_are_cut_by_themselves(
    kind: str, policy: str, has_targets: bool
) -> None:
    num_own = 2
    full = num_own * hvd.size()
    # The last batch of each kind is smaller.
    rows = ragged_lengths(4 * 2 * full + 1)
    if has_targets:
        rows = rows.map(lambda x: (x, x[:1]))
    if kind == "padded":
        batches = rows.padded_batch(2 * full)
    else:
        batches = rows.bucket_by_sequence_length(
            lambda x, *_: tf.shape(x)[0], [2, 3], [2 * full] * 3
        )
    if not has_targets and policy == "pad":
        batches = batches.take(1)  # they cannot tell which rows fill them
    share = hvd.shard(batches, batch_size=num_own, batched=True, policy=policy)
    by_rank = hvd.allgather_object(
        [
            [np.asarray(part) for part in (b if has_targets else (b,))]
            for b in share
        ]
    )
    assert len({len(steps) for steps in by_rank}) == 1
    found = []
    for parts in zip(*by_rank, strict=True):
        widths = {part[0].shape[1] for part in parts}
        assert len(widths) == 1  # no step has rows of two batches
        for part in parts:
            weights = part[2] if len(part) == 3 else np.ones(len(part[0]))
            found += part[0][weights > 0, 0].astype(int).tolist()
    wanted = [
        int(row) for b in batches for row in (b[0] if has_targets else b)[:, 0]
    ]
    if policy == "drop":
        assert len(set(found)) == len(found)
        assert set(found) <= set(wanted)
    else:
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("has_rank", [False, True])
def test_rows_of_unknown_length_need_no_targets(has_rank: bool) -> None:
    count = 4 * SIZE * hvd.size() + 1
    rows = tf.data.Dataset.range(count).map(
        lambda i: tf.numpy_function(lambda j: np.array([j, j]), [i], tf.int64)
    )
    if has_rank:
        rows = rows.map(lambda x: tf.ensure_shape(x, [None]))
    own = [
        int(x)
        for batch in hvd.shard(rows, batch_size=SIZE)
        for x in batch[:, 0]
    ]
    found = np.concatenate(hvd.allgather_object(own))
    assert sorted(found) == list(range(count))


@pytest.mark.skipif("hvd.size() == 1", reason="needs batches to cut")
def test_rows_on_another_axis_are_not_cut() -> None:
    class TimeFirst(Batches):
        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            rows, targets = super().__getitem__(index)
            return np.stack([rows] * 5), targets

    share = hvd.shard(TimeFirst(np.arange(SIZE * (hvd.size() + 1))))
    with pytest.raises(ValueError, match="rows on axis 0"):
        list(share)


@pytest.mark.skipif("hvd.size() == 1", reason="needs batches to cut")
def test_what_has_no_targets_is_told_to_be_cut_along_axis_0(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Pairs(Batches):
        def __getitem__(self, index: int) -> np.ndarray:
            rows, _ = super().__getitem__(index)
            return np.stack([rows] * 6)

    share = hvd.shard(Pairs(np.arange(SIZE * (hvd.size() + 1))))
    with caplog.at_level("INFO", logger="hvd_keras"):
        list(share)
        list(share)
    told = [text for text in caplog.messages if "along axis 0" in text]
    assert len(told) == (hvd.rank() == 0)
    assert all("policy='drop'" in text for text in told)


def test_batches_of_two_sizes_are_refused() -> None:
    def of(size: int) -> Any:
        return tf.data.Dataset.range(24).batch(size, drop_remainder=True)

    both = tf.data.Dataset.zip(of(4), of(8))
    with pytest.raises(ValueError, match="same number of rows"):
        hvd.shard(both, batch_size=2, batched=True)
