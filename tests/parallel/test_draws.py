"""Each rank draws its own random numbers in `fit`, and only there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]

ROWS = 24 * hvd.size()
BEGIN = hvd.callbacks.BroadcastGlobalVariablesCallback


@pytest.fixture(autouse=True)
def seed() -> None:
    keras.utils.set_random_seed(5)


def of_ranks(values: Any) -> list[Any]:
    return hvd.allgather_object(np.ravel(values).tolist())


def are_equal(values: Any) -> bool:
    return len(set(map(str, of_ranks(values)))) == 1


def are_apart(values: Any, may_repeat: bool = False) -> bool:
    """Whether no rank has a number of another one, or one twice."""
    by_rank = [np.round(of_one, 6).tolist() for of_one in of_ranks(values)]
    if may_repeat:
        by_rank = [list(set(of_one)) for of_one in by_rank]
    numbers = list(itertools.chain(*by_rank))
    return len(numbers) > 0 and len(set(numbers)) == len(numbers)


def fit(
    step: Callable[[], Any] | None = None, *callbacks: Any, **kw: Any
) -> Any:
    """Trains for an epoch; returns what `step` draws in each step."""

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.drawn = keras.Variable(
                np.zeros(64, "float32"), trainable=False
            )
            self.count = keras.Variable(0, dtype="int32", trainable=False)

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            if step is not None:
                hot = tf.one_hot(self.count.value, 64)
                self.drawn.assign_add(hot * step())
                self.count.assign_add(1)
            return super().train_step(data)

    model = kw.pop("model", None) or Model()
    if not model.built:
        model.build((None, 3))
    if not model.compiled:
        eager = kw.pop("run_eagerly", False)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)),
            "mse",
            run_eagerly=eager,
            jit_compile=False,
        )
    data = kw.pop("data", None)
    if data is None:
        arrays = np.zeros((ROWS, 3), "f"), np.zeros((ROWS, 1), "f")
        data = hvd.shard(arrays, batch_size=4)
    model.fit(
        data, verbose=0, callbacks=[BEGIN(0, [model.drawn]), *callbacks], **kw
    )
    fit.model = model
    return model.drawn.numpy()[: int(model.count.numpy())]


DRAWS = {
    "keras": lambda: keras.random.normal(()),
    "tf": lambda: tf.random.normal(()),
    "op_seed": lambda: tf.random.normal((), seed=3),
}


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_steps_draw_apart(draw: Callable[[], Any], eager: bool) -> None:
    assert are_equal(draw())
    drawn = fit(draw, run_eagerly=eager)
    assert are_apart(drawn)
    assert are_equal(draw())
    # A second `fit` draws others; so does one after a new seed.
    again = fit(draw, model=fit.model)
    assert len(again) == 2 * len(drawn)
    assert are_apart(again)
    assert are_equal(draw())


def test_metrics_draw_apart() -> None:
    class Drawing(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="drawing")
            self.seeds = keras.random.SeedGenerator(3)
            self.last = self.add_variable((), "zeros")

        def update_state(self, *args: Any, **kw: Any) -> None:
            self.last.assign(keras.random.uniform((), seed=self.seeds))

        def result(self) -> Any:
            return self.last

    metric = Drawing()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), "mse", metrics=[metric])
    arrays = np.zeros((ROWS, 3), "f"), np.zeros((ROWS, 1), "f")
    model.fit(hvd.shard(arrays, batch_size=4), verbose=0, callbacks=[BEGIN(0)])
    assert are_apart(metric.last.numpy())


def test_a_step_that_was_traced_before_draws_apart() -> None:
    fit(DRAWS["tf"], epochs=0)
    model = fit.model
    batch = np.zeros((4, 3), "f"), np.zeros((4, 1), "f")
    model.train_on_batch(*batch)
    assert are_equal(model.drawn)
    assert are_apart(fit(model=model)[1:])


def test_draws_after_a_fit_are_those_of_one_process_if_none_was_made() -> None:
    fit()
    after = [keras.random.normal(()), keras.layers.Dense(3).kernel_initializer]
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    assert are_equal(layer.kernel)
    assert are_equal(after[0])


def test_callbacks_draw_apart() -> None:
    drawn: list[Any] = []

    class Draw(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            drawn.extend(float(draw()) for draw in DRAWS.values())

    fit(None, Draw())
    assert are_apart(drawn)


def test_a_fit_that_raises_goes_back() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fit(None, Stop())
    for draw in DRAWS.values():
        assert are_equal(draw())


def noise(kind: str) -> Callable[[Any], Any]:
    if kind == "layer":
        layer = keras.layers.GaussianNoise(1.0)
        return lambda x: layer(x, training=True)
    draw = {"keras": keras.random.normal, "tf": tf.random.normal}[kind]
    return lambda x: x + draw(tf.shape(x))


@pytest.mark.parametrize("is_parallel", [False, True], ids=["map", "parallel"])
@pytest.mark.parametrize("kind", ["keras", "tf", "layer"])
def test_maps_behind_a_share_draw_apart(kind: str, is_parallel: bool) -> None:
    add = noise(kind)
    rows = tf.data.Dataset.from_tensor_slices(
        (np.zeros((ROWS, 3), "f"), np.zeros((ROWS, 1), "f"))
    )
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x.numpy())
        return x

    data = hvd.shard(rows.shuffle(ROWS, seed=1), batch_size=4)
    calls = {"num_parallel_calls": 2} if is_parallel else {}
    data = data.map(lambda x, y: (add(x), y), **calls).prefetch(1)
    data = data.map(
        lambda x, y: (
            tf.ensure_shape(tf.py_function(look, [x], tf.float32), x.shape),
            y,
        )
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    model.fit(data, verbose=0, epochs=2, callbacks=[BEGIN(0)])
    # Those of an epoch: tf.data begins each with the seeds of its ops. Calls
    # at once may read the same state of a generator of Keras: on one process,
    # too, both then draw the same.
    drawn = np.concatenate([np.ravel(x) for x in seen[-6:]])
    assert are_apart(drawn, may_repeat=is_parallel and kind != "tf")


@pytest.mark.parametrize("kind", ["keras", "tf", "layer"])
def test_maps_in_front_of_a_share_draw_in_common(kind: str) -> None:
    add = noise(kind)
    rows = tf.data.Dataset.from_tensor_slices(
        (np.zeros((ROWS, 3), "f"), np.zeros((ROWS, 1), "f"))
    ).batch(4)
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x.numpy())
        return x

    rows = rows.map(lambda x, y: (add(x), y)).map(
        lambda x, y: (
            tf.ensure_shape(tf.py_function(look, [x], tf.float32), x.shape),
            y,
        )
    )
    data = hvd.shard(rows, batch_size=4, batched=True)
    fit(data=data, epochs=2)
    assert are_equal(np.concatenate([np.ravel(x) for x in seen]))


def test_what_decides_on_the_order_is_drawn_in_common() -> None:
    class Shuffled(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__()
            self.order = np.arange(2 * hvd.size())
            self.orders: list[Any] = []
            self.noise: list[float] = []

        def __len__(self) -> int:
            return len(self.order)

        def __getitem__(self, index: int) -> Any:
            self.noise.append(float(keras.random.normal(())))
            rows = np.full((2, 3), self.order[index], "f")
            return rows, rows[:, :1]

        def on_epoch_end(self) -> None:
            self.order = np.asarray(keras.random.shuffle(self.order))
            self.orders.append(tf.random.shuffle(self.order, seed=1).numpy())
            self.orders.append(self.order)

    batches = Shuffled()
    fit(data=hvd.shard(batches), epochs=4)
    assert len({str(order) for order in batches.orders}) > 2
    assert are_equal(batches.orders)
    assert are_apart(batches.noise[-4:])


def test_a_function_of_the_epoch_shuffles_in_common() -> None:
    rows = tf.data.Dataset.range(ROWS)
    seen: list[Any] = []

    def of_epoch(epoch: int) -> Any:
        return rows.shuffle(ROWS, seed=epoch).map(
            lambda i: (tf.fill([3], tf.cast(i, tf.float32)), tf.zeros([1]))
        )

    def look(x: Any) -> Any:
        seen.extend(x.numpy()[:, 0].tolist())
        return x

    data = hvd.shard(of_epoch, batch_size=4).map(
        lambda x, y: (
            tf.ensure_shape(tf.py_function(look, [x], tf.float32), x.shape),
            y,
        )
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    model.fit(data, verbose=0, epochs=2, callbacks=[BEGIN(0)])
    for epoch in ([-12, -6], [-6, None]):
        share = seen[slice(*(e and e * 4 for e in epoch))]
        assert sorted(itertools.chain(*of_ranks(share))) == list(range(ROWS))
