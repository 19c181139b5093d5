"""A script that has forgotten something gets one clear line, on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback, StepsGuard

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]


class Lines(list[str]):
    """What our logger was told."""

    def of_rank_0(self, text: str) -> bool:
        """Whether rank 0 got exactly this line, and the others none."""
        wanted = 1 if hvd.rank() == 0 else 0
        return len(self) == wanted == sum(text in line for line in self)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    from hvd_keras._common import log

    found = Lines()
    monkeypatch.setattr(log, "warning", found.append)
    return found


def fit(model: keras.Model, data: Any, *callbacks: Any, **options: Any) -> None:
    for _ in range(2):
        model.fit(data, verbose=0, callbacks=list(callbacks), **options)


class OwnStep(keras.Model):
    """Reduces its gradients in its own `train_step`, if at all."""

    reduces = True

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        tape: Any = tf.GradientTape()
        if self.reduces:
            tape = hvd.DistributedGradientTape(tape)
        with tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_step() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    return OwnStep(inputs, keras.layers.Dense(1)(inputs))


@pytest.mark.parametrize("callback", [False, True])
def test_a_plain_optimizer(lines: Lines, callback: bool) -> None:
    model = kt.build(kt.functional_model)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = hvd.shard(kt.regression_data(), batch_size=8)
    fit(model, data, *[BroadcastGlobalVariablesCallback()][: int(callback)])
    assert lines.of_rank_0("plain optimizer SGD")


def test_a_plain_optimizer_in_an_own_step(lines: Lines) -> None:
    data = hvd.shard(kt.regression_data(), batch_size=8)
    model = kt.build(own_step)
    model.compile(keras.optimizers.SGD(0.1))
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert not lines
    model = kt.build(own_step)
    model.reduces = False
    model.compile(keras.optimizers.SGD(0.1))
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert lines.of_rank_0("train apart")


def test_the_same_data_on_all_ranks(lines: Lines) -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = kt.regression_data()
    broadcast = BroadcastGlobalVariablesCallback()
    fit(model, hvd.shard((x, y), batch_size=8), broadcast)
    assert not lines
    fit(model, kt.whole_batches(x, y), broadcast)
    assert lines.of_rank_0("hvd.shard")


def test_equal_losses_of_the_first_step_are_no_equal_data(lines: Lines) -> None:
    def make_model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        head = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
        return keras.Model(inputs, head(inputs))

    model = kt.build(make_model)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        "binary_crossentropy",
    )
    x, y = kt.regression_data()
    data = hvd.shard((x, (y > 0).astype("float32")), batch_size=8)
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert not lines


class Squares(keras.Model):
    """Needs no targets."""

    def compute_loss(self, x: Any = None, *_: Any, **__: Any) -> Any:
        return tf.reduce_mean(self(x) ** 2)


@pytest.mark.parametrize("rest", [0, 1, hvd.size()])
def test_a_rest_that_is_joined(lines: Lines, rest: int) -> None:
    inputs = keras.Input((kt.NUM_FEATURES,))
    model = kt.build(lambda: Squares(inputs, keras.layers.Dense(1)(inputs)))
    model.compile(hvd.DistributedOptimizer("sgd"))
    x, _ = kt.regression_data()
    x = x[: 16 * hvd.size() + rest]
    data = hvd.shard(tf.data.Dataset.from_tensor_slices(x), batch_size=8)
    fit(model, data)
    told = [line for line in lines if "on one process" in line]
    assert len(told) == (rest == 1 and hvd.rank() == 0)
    assert rest or not lines


@pytest.mark.parametrize("averages", [False, True])
def test_metrics_of_own_rows(lines: Lines, averages: bool) -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    rows = kt.regression_data()
    average = [hvd.callbacks.MetricAverageCallback()][: int(averages)]
    for _ in range(2):
        share = hvd.shard(rows, batch_size=8)
        model.evaluate(share, verbose=0, callbacks=average)
    assert not lines if averages else lines.of_rank_0("each rank's own rows")
    fit(model, hvd.shard(rows, batch_size=8), validation_data=rows, epochs=1)
    model.evaluate(*rows, verbose=0)  # all rows on each rank
    assert len(lines) == (0 if averages or hvd.rank() else 1)


@pytest.mark.parametrize("monitor", ["loss", "val_loss", ""])
def test_callbacks_that_decide_by_own_rows(lines: Lines, monitor: str) -> None:
    rows = kt.regression_data()
    model = distributed()
    share = hvd.shard(rows, batch_size=8)
    plateau = [keras.callbacks.ReduceLROnPlateau(monitor)] if monitor else []
    fit(model, share)  # nobody decides
    assert not lines
    for _ in range(2):
        fit(model, share, *plateau, validation_data=rows)
    assert len(lines) == (monitor == "loss" and hvd.rank() == 0)
    assert not lines or lines.of_rank_0("callbacks decide by them")


def as_frames(*arrays: np.ndarray) -> list[Any]:
    pandas = pytest.importorskip("pandas")
    return [pandas.DataFrame(array) for array in arrays]


KINDS: dict[str, Callable[..., list[Any]]] = {
    "numpy": lambda x, y: [x, y],
    "tensors": lambda x, y: [tf.constant(x), tf.constant(y)],
    "frames": as_frames,
    "wide": lambda x, y: [np.repeat(x, 20_000, axis=1), y],
}


def distributed(**options: Any) -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), **options)
    model.compile(optimizer, "mse")
    return model


def test_predictions_for_own_rows(lines: Lines) -> None:
    keras.utils.set_random_seed(1)
    model = distributed()
    x, _ = kt.regression_data()
    share = hvd.shard(x, batch_size=4)
    for _ in range(2):
        assert len(hvd.predict(model, share, verbose=0)) == len(x)
    assert not lines
    for _ in range(2):
        model.predict(share, verbose=0)
    assert lines.of_rank_0("`hvd.predict(model, data)`")


@pytest.mark.parametrize("shuffles", [True, False])
def test_a_fit_that_cannot_shuffle(lines: Lines, shuffles: bool) -> None:
    from hvd_keras.data import _arguments

    _arguments._tell_of_shuffle.cache_clear()
    share = hvd.shard(kt.regression_data(), batch_size=4, shuffle=shuffles)
    guard = BroadcastGlobalVariablesCallback()
    fit(distributed(), share, guard, shuffle=True)
    if shuffles:
        assert not lines
    else:
        assert lines.of_rank_0("pass `shuffle=True` to `hvd.shard`")


@pytest.mark.parametrize("averages", [False, True])
def test_a_stop_by_own_metrics(lines: Lines, averages: bool) -> None:
    x, y = kt.regression_data()
    y = y * (-1.0) ** (np.arange(len(y)) > len(y) // 2)[:, None]
    own = slice(hvd.rank(), None, hvd.size())
    rows = x[own], (y if hvd.rank() else -y)[own]
    average = [hvd.callbacks.MetricAverageCallback()] if averages else []
    stopping = keras.callbacks.EarlyStopping("loss", patience=1)
    guard = BroadcastGlobalVariablesCallback()
    callbacks = [guard, *average, stopping]
    model = distributed()
    for _ in range(2):
        model.fit(
            *rows, epochs=40, batch_size=8, verbose=0, callbacks=callbacks
        )
    if averages:
        assert not lines
    else:
        assert lines.of_rank_0("`EarlyStopping` has ended the training")


@pytest.mark.parametrize("whose", ["all rows", "own rows", "on rank 0"])
def test_what_adapt_has_learnt(lines: Lines, whose: str) -> None:
    x, y = kt.regression_data()
    layer = keras.layers.Normalization()
    layer.build(x.shape)
    own = slice(hvd.rank(), None, hvd.size())
    if whose != "on rank 0" or hvd.rank() == 0:
        layer.adapt(x[own] if whose == "own rows" else x)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse")
    share = hvd.shard((x, y), batch_size=4)
    fit(model, share, BroadcastGlobalVariablesCallback())
    if whose == "own rows":
        assert lines.of_rank_0("have called `adapt`")
    else:
        assert not lines
        np.testing.assert_allclose(layer.mean[0], x.mean(0), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_arrays_on_all_ranks(
    lines: Lines, kind: str, shuffle: bool
) -> None:
    keras.utils.set_random_seed(hvd.rank())  # another order on each rank
    x, y = KINDS[kind](*kt.regression_data())
    options = {"shuffle": shuffle, "verbose": 0, "validation_split": 0.25}
    model, guard = distributed(), BroadcastGlobalVariablesCallback()
    for _ in range(2):
        model.fit(x, y, callbacks=[guard], **options)
    assert lines.of_rank_0("equal arrays on all ranks")


class Rows(keras.utils.PyDataset):
    """All rows in an order of its own, or a part of each batch."""

    def __init__(self, part: slice = slice(None)) -> None:
        super().__init__()
        self.x, self.y = kt.regression_data()
        self.batch_size, self.part = 8, part
        self.order = np.random.default_rng().permutation(len(self.x))

    def __len__(self) -> int:
        return len(self.x) // self.batch_size

    def __getitem__(self, index: int) -> Any:
        begin = index * self.batch_size
        rows = self.order[begin : begin + self.batch_size][self.part]
        return self.x[rows], self.y[rows]


class RowsOfRank(Rows):
    def __getitem__(self, index: int) -> Any:
        rows = slice(hvd.rank(), None, hvd.size())
        return tuple(each[rows] for each in super().__getitem__(index))


def permuted() -> list[Any]:
    x, y = kt.regression_data()
    order = np.random.default_rng().permutation(len(x))
    return [x[order], y[order]]


def shuffled(dataset: tf.data.Dataset) -> list[Any]:
    return [dataset.shuffle(64, seed=hvd.rank()).batch(8).prefetch(2)]


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(kt.regression_data())


WHOLE: dict[str, Callable[[], list[Any]]] = {
    "arrays": permuted,
    "dataset": lambda: shuffled(rows()),
    "mapped": lambda: shuffled(rows().map(lambda x, y: (x * 2, y))),
    "PyDataset": lambda: [Rows()],
}
PARTS: dict[str, Callable[[], list[Any]]] = {
    "shard": lambda: shuffled(rows().shard(hvd.size(), hvd.rank())),
    "filter": lambda: shuffled(
        rows()
        .enumerate()
        .filter(lambda number, _: number % hvd.size() == hvd.rank())
        .map(lambda _, row: row)
    ),
    "slice": lambda: [Rows(slice(hvd.rank(), None, hvd.size()))],
    "rank": lambda: [RowsOfRank()],
    "hvd.shard": lambda: [hvd.shard(rows(), batch_size=8)],
}


@pytest.mark.parametrize("kind", WHOLE)
def test_all_rows_in_other_orders(lines: Lines, kind: str) -> None:
    keras.utils.set_random_seed(1)
    distributed().fit(*WHOLE[kind](), verbose=0)
    assert lines.of_rank_0("All ranks train on the same rows.")


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_the_rows(lines: Lines, kind: str) -> None:
    keras.utils.set_random_seed(1)
    distributed().fit(*PARTS[kind](), verbose=0)
    assert not lines


def test_the_same_arrays_without_a_callback(lines: Lines) -> None:
    keras.utils.set_random_seed(1)
    x, y = kt.regression_data()
    distributed().fit(x, y, verbose=0)
    assert lines.of_rank_0("equal arrays on all ranks")


class Batches(keras.utils.PyDataset):
    """Those of a share, or of all rows."""

    def __init__(self, shares: bool) -> None:
        super().__init__()
        ours = slice(hvd.rank(), None, hvd.size())
        self._part = ours if shares else slice(None)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return tuple(each[self._part][:8] for each in kt.regression_data())


@pytest.mark.parametrize("shares", [False, True])
def test_the_same_batches_without_a_callback(
    lines: Lines, shares: bool
) -> None:
    distributed().fit(Batches(shares), verbose=0)
    if shares:
        assert not lines
    else:
        assert lines.of_rank_0("equal metrics after two steps")


def test_unequal_steps_without_a_callback() -> None:
    x, y = kt.regression_data()
    num_rows = len(x) - 8 * hvd.rank()
    with pytest.raises(hvd.MismatchError, match="number of steps per epoch"):
        distributed().fit(x[:num_rows], y[:num_rows], 8, verbose=0)


@pytest.mark.parametrize("equal_seeds", [True, False])
def test_drawn_arrays_with_equal_seeds(lines: Lines, equal_seeds: bool) -> None:
    keras.utils.set_random_seed(3 if equal_seeds else 3 + hvd.rank())
    x, y = np.random.rand(32, 3), np.random.rand(32, 1)
    guard = BroadcastGlobalVariablesCallback()
    distributed().fit(x, y, verbose=0, callbacks=[guard])
    if equal_seeds:
        assert lines.of_rank_0("add `hvd.rank()` to the seed")
        assert lines.of_rank_0("the same numbers from `np.random`")
    else:
        assert not lines


def test_the_same_strings_on_all_ranks(lines: Lines) -> None:
    words = np.array([f"word {i}" for i in range(32)], object)
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            keras.layers.StringLookup(vocabulary=["a", "b"]),
            keras.layers.Embedding(3, 2),
            keras.layers.Dense(1),
        ]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    labels, guard = np.arange(32.0), BroadcastGlobalVariablesCallback()
    model.fit(words, labels, verbose=0, callbacks=[guard])
    assert lines.of_rank_0("equal arrays on all ranks")


@pytest.mark.parametrize("part", ["x", "y", "sample_weight"])
def test_arrays_that_differ_in_one_part(lines: Lines, part: str) -> None:
    x, y = kt.regression_data()
    arrays = {"x": x, "y": y, "sample_weight": np.ones(len(x), np.float32)}
    arrays[part] = arrays[part] + np.float32(hvd.rank())
    guard = BroadcastGlobalVariablesCallback()
    distributed().fit(**arrays, verbose=0, callbacks=[guard])
    assert not lines


def test_steps_that_draw_from_the_same_arrays(lines: Lines) -> None:
    keras.utils.set_random_seed(hvd.rank())
    guard = BroadcastGlobalVariablesCallback()
    x, y = kt.regression_data()
    steps = len(x) // 8 // hvd.size()
    distributed().fit(
        x, y, 8, verbose=0, steps_per_epoch=steps, callbacks=[guard]
    )
    assert not lines


def test_equal_rows_are_no_equal_data(lines: Lines) -> None:
    x, y = np.ones((16, 3)), np.zeros((16, 1))
    # One step: then the metrics, which are equal, are not compared.
    guard = BroadcastGlobalVariablesCallback()
    distributed().fit(x, y, 16, verbose=0, callbacks=[guard])
    assert not lines


def test_a_strategy_takes_all_arrays(lines: Lines) -> None:
    with hvd.HvdStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = kt.regression_data()
    model.fit(x, y, 8, verbose=0, callbacks=[StepsGuard()])
    assert not lines


def test_each_process_set_may_have_all_arrays(lines: Lines) -> None:
    sets = [hvd.ProcessSet([rank]) for rank in range(hvd.size())]
    mine = sets[hvd.rank()]
    hvd.shutdown()
    hvd.init(process_sets=sets)
    keras.utils.set_random_seed(hvd.rank())
    try:
        model = distributed(process_set=mine)
        x, y = kt.regression_data()
        model.fit(x, y, verbose=0, callbacks=[StepsGuard()])
    finally:
        hvd.shutdown()
        hvd.init()
    assert not lines
