"""A distributed optimizer refuses mistakes on all ranks and pairs by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras._gradients import optimizer_names
from hvd_keras._job import membership
from hvd_keras._values import agreement

optimizers = keras.optimizers
needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


@needs_peers
@pytest.mark.parametrize("as_function", [False, True])
def test_raises_when_ranks_hold_different_gradients(as_function: bool) -> None:
    variables = [tf.Variable(tf.zeros(3), name=f"v{n}") for n in range(4)]
    used = [v for n, v in enumerate(variables) if n < 3 or hvd.rank() == 0]
    used = [v.ref() for v in used]
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1, name="differs"))

    def step() -> None:
        gradients = [
            tf.ones(3) if variable.ref() in used else None
            for variable in variables
        ]
        optimizer.apply(gradients, variables)

    if as_function:
        step = tf.function(step, autograph=False)
    with pytest.raises(hvd.MismatchError, match="v3") as raised:
        step()
    assert "rank 0" in str(raised.value)
    assert "rank 1: no gradient" in str(raised.value)
    hvd.allreduce(1.0, name="still_alive")


@needs_peers
def test_raises_when_names_of_optimizers_differ() -> None:
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.1, name=f"sgd_of_{'abcd'[hvd.rank()]}")
    )
    variable = tf.Variable([1.0])
    with pytest.raises(hvd.MismatchError, match="sgd_of_b"):
        optimizer.apply([tf.ones(1)], [variable])


@needs_peers
@pytest.mark.parametrize("groups", [None, 2], ids=["variable", "buckets"])
def test_raises_when_only_positions_or_buckets_differ(
    groups: int | None, rank: int
) -> None:
    variables = [tf.Variable([0.0]) for _ in range(3)]
    assert len({v.name for v in variables}) == 1
    groups = groups and groups + rank
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1), groups=groups)
    gradients = [tf.ones(1)] * 3
    if groups is None:
        gradients[rank % 2] = None
    text = f"groups={groups}" if groups else f"variable {1 - rank % 2}"
    with pytest.raises(hvd.MismatchError, match=f"rank {rank}: .*{text}"):
        optimizer.apply(gradients, variables)


def test_name_argument_overrides_the_name_of_the_optimizer() -> None:
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0, name=f"own_{hvd.rank()}"), name="common"
    )
    variable = tf.Variable([0.0])
    optimizer.apply([tf.constant([float(hvd.rank())])], [variable])
    assert variable.numpy()[0] == -(hvd.size() - 1) / 2


@pytest.mark.skipif("hvd.size() > 1", reason="one rank")
def test_jit_compile_on_one_rank_equals_plain_keras() -> None:
    expected = kt.build(kt.functional_model)
    expected.compile(optimizers.SGD(0.1), "mse", jit_compile=False)
    expected.fit(*kt.regression_data(), shuffle=False, verbose=0)
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse", jit_compile=True
    )
    model.fit(*kt.regression_data(), shuffle=False, verbose=0)
    assert model.jit_compile
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)


def test_tf_function_loop_equals_one_process() -> None:
    model = kt.build(kt.functional_model)
    expected = kt.build(kt.functional_model)
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.01))
    plain = optimizers.Adam(0.01)

    def step(model: keras.Model, optimizer: object, x: object, y: object):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    ours = tf.function(lambda x, y: step(model, optimizer, x, y))
    reference = tf.function(lambda x, y: step(expected, plain, x, y))
    data = kt.regression_data()
    for x, y in kt.shares(*data):
        ours(x, y)
    for x, y in kt.whole_batches(*data):
        reference(x, y)
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)


class Penalty(keras.layers.Layer):
    """Has a weight whose gradient does not depend on the batch."""

    def build(self, input_shape: object) -> None:
        self.weight = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs: object) -> object:
        self.add_loss(keras.ops.sum(self.weight**2))
        return inputs


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("bucket_of_each")
@pytest.mark.parametrize("place", thorough_except([1, 3], 3))
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_no_collective_runs_after_the_last_batch(
    place: int, passes: int, policy: str
) -> None:
    # After the last batch of data of unknown length, TensorFlow still runs all
    # that does not depend on a batch.
    layers = [keras.Input((kt.NUM_FEATURES,)), keras.layers.Dense(3)]
    layers += [keras.layers.Dense(1)]
    layers.insert(place, Penalty())
    model = keras.Sequential(layers)
    optimizer = optimizers.SGD(0.01)
    if policy == "mixed_float16":
        optimizer = optimizers.LossScaleOptimizer(optimizer)
    model.compile(
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes),
        "mse",
    )
    x, y = kt.regression_data()
    data = kt.shares(x, y * 0).take(4).filter(lambda x, y: True)
    model.fit(data, epochs=1, verbose=0)
    before = hvd.stats()["num_requests"]
    model.fit(data, epochs=4, verbose=0)
    # The number of rows in each batch, and whether the gradients are finite;
    # once what ranks know of the data.
    num_others = 16 + 1 + (16 if policy == "mixed_float16" else 0)
    num_reduced = hvd.stats()["num_requests"] - before - num_others
    # Without loss scaling Keras itself counts one step too many in each epoch,
    # which decides at which batches it updates.
    assert num_reduced == 5 * 16 // passes


def test_an_optimizer_that_hides_its_gradients_is_refused() -> None:
    class Lone(keras.optimizers.SGD):
        def _backend_apply_gradients(
            self, grads: list, variables: list
        ) -> None:
            for gradient, variable in zip(grads, variables, strict=True):
                variable.assign_sub(gradient)

    optimizer = hvd.DistributedOptimizer(Lone(0.1))
    with pytest.raises(TypeError, match="_clip_gradients"):
        optimizer.apply([tf.ones(1)], [tf.Variable([1.0])])


@pytest.mark.parametrize("is_lone", [False, True])
def test_an_apply_of_the_users_gets_reduced_gradients(is_lone: bool) -> None:
    seen = []

    class Own(keras.optimizers.SGD):
        def apply(self, grads: list, trainable_variables: list) -> None:
            seen.extend(float(gradient[0]) for gradient in grads)
            if not is_lone:
                super().apply(grads, trainable_variables)
                return
            for gradient, variable in zip(
                grads, trainable_variables, strict=True
            ):
                variable.assign_sub(gradient)

    optimizer = hvd.DistributedOptimizer(Own(1.0))
    variable = tf.Variable([1.0])
    optimizer.apply([tf.ones(1) * (hvd.rank() + 1.0)], [variable])
    mean = (hvd.size() + 1.0) / 2.0
    assert seen == [mean]
    assert variable.numpy()[0] == 1.0 - mean


@pytest.mark.parametrize("as_function", [False, True])
def test_optimizers_with_equal_names_do_not_mix(as_function: bool) -> None:
    first = hvd.DistributedOptimizer(optimizers.SGD(1.0, name="twin"))
    second = copy.deepcopy(first)
    assert first.name == second.name
    variables = [tf.Variable([0.0]), tf.Variable([0.0])]

    def step(rank: tf.Tensor) -> None:
        # Only their names order the two.
        first.apply([rank * 1.0], [variables[0]])
        second.apply([rank * 10.0], [variables[1]])

    if as_function:
        step = tf.function(step)
    mean = (hvd.size() - 1) / 2
    for number in range(1, 6):
        step(tf.constant([float(hvd.rank())]))
        assert variables[0].numpy()[0] == -mean * number
        assert variables[1].numpy()[0] == -10.0 * mean * number


def make_more(rank: int) -> None:
    """Makes optimizers that nobody uses, different ones on each rank."""
    for number in range(rank):
        optimizers.SGD(0.1)
        hvd.DistributedOptimizer(optimizers.SGD(0.1 + number), op=hvd.Sum)
        hvd.DistributedOptimizer(optimizers.SGD(0.1), name="named")


@pytest.mark.parametrize("name", [None, "named"])
def test_names_are_equal_where_ranks_made_other_optimizers(
    name: str | None, rank: int, size: int
) -> None:
    make_more(rank)
    first = hvd.DistributedOptimizer(optimizers.SGD(1.0), name=name)
    make_more(size - rank)
    second = hvd.DistributedOptimizer(optimizers.SGD(1.0), name=name)
    variables = [tf.Variable([0.0]), tf.Variable([0.0])]

    @tf.function
    def step(rank: tf.Tensor) -> None:
        first.apply([rank * 1.0], [variables[0]])
        second.apply([rank * 10.0], [variables[1]])

    step(tf.constant([float(rank)]))
    mean = (size - 1) / 2
    assert [float(v[0]) for v in variables] == [-mean, -10.0 * mean]
    names = [each.hvd_reducer.name() for each in (first, second)]
    assert names[0] != names[1]
    assert hvd.allgather_object(names) == [names] * size


def test_names_are_equal_where_ranks_used_other_optimizers(
    rank: int, size: int
) -> None:
    label = "of a newcomer and a survivor"
    for _ in range(rank):  # fails: the peers do not come
        optimizer_names._num_named[1, 0, label] += 1

    def name(epoch: int) -> str:
        check = optimizer_names.agreed_name(label, epoch, 0)
        return agreement.together("name", [check])[0]

    names = [name(1), name(1)]
    suffix = membership.name_suffix()
    last = [f"{label}#{size}{suffix}", f"{label}#{size + 1}{suffix}"]
    assert names == ([label + suffix, last[1]] if size == 1 else last)
    assert name(1_000) == label + suffix


def test_an_optimizer_has_another_name_in_another_job(size: int) -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    variable = tf.Variable([0.0])
    optimizer.apply([tf.ones(1)], [variable])
    before = optimizer.hvd_reducer.name()
    assert optimizer.hvd_reducer.name() == before
    hvd.shutdown()
    hvd.init()
    hvd.DistributedOptimizer(optimizers.SGD(1.0)).apply(
        [tf.ones(1)], [variable]
    )
    optimizer.apply([tf.ones(1)], [variable])
    after = optimizer.hvd_reducer.name()
    assert after != before
    assert hvd.allgather_object(after) == [after] * size
    assert variable.numpy() == [-3.0]


ALL_OPTIMIZERS = [
    cls
    for _, cls in inspect.getmembers(optimizers, inspect.isclass)
    if issubclass(cls, optimizers.Optimizer)
    and cls is not optimizers.Optimizer
    and cls.__name__ not in ("LossScaleOptimizer", "MultiOptimizer")
]


def apply_often(optimizer: Any, ranks: list[int]) -> list[np.ndarray]:
    """Applies the mean of the gradients of `ranks` three times."""
    variables = [
        keras.Variable(np.ones((4, 3), np.float32), name="matrix"),
        keras.Variable(np.ones(5, np.float32), name="vector"),
    ]
    optimizer.build(variables)
    for step in range(1, 4):
        gradients = [
            np.mean(
                [np.cos(np.arange(v.size) + rank + step) for rank in ranks],
                axis=0,
            ).reshape(v.shape)
            for v in map(np.asarray, variables)
        ]
        gradients = [tf.constant(g, tf.float32) for g in gradients]
        optimizer.apply(gradients, variables)
    return [np.asarray(v) for v in [*variables, *optimizer.variables]]


@pytest.mark.parametrize("cls", ALL_OPTIMIZERS, ids=lambda cls: cls.__name__)
def test_every_optimizer_of_keras_can_be_distributed(
    cls: type, rank: int, size: int
) -> None:
    try:
        expected = apply_often(cls(learning_rate=0.1), list(range(size)))
    except AttributeError as error:
        if cls.__name__ != "Muon":
            raise
        pytest.skip(f"Keras 3.10 alone fails: {error}")
    values = apply_often(
        hvd.DistributedOptimizer(cls(learning_rate=0.1)), [rank]
    )
    kt.assert_close(values, expected, 1e-5)
    kt.assert_equal_on_all_ranks(values)


@pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="newer than this Keras"
)
def test_optimizers_in_a_multi_optimizer_can_be_distributed(
    rank: int, size: int
) -> None:
    def multi(wrap: Callable[[Any], Any]) -> Any:
        return optimizers.MultiOptimizer(
            optimizers.OptimizerMap(
                wrap(optimizers.SGD(0.1)),
                {"vector": wrap(optimizers.Adam(0.1))},
            )
        )

    expected = apply_often(multi(lambda o: o), list(range(size)))
    optimizer = multi(hvd.DistributedOptimizer)
    kt.assert_close(apply_often(optimizer, [rank]), expected, 1e-5)
    scaled = optimizers.LossScaleOptimizer(optimizer)
    own = tf.constant(np.inf if rank == size - 1 else 1.0)
    assert not scaled.check_finite([own])
    with pytest.raises(TypeError, match="must be made distributed before"):
        hvd.DistributedOptimizer(multi(lambda o: o))
