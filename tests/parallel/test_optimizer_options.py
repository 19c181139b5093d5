"""Each option of a distributed optimizer does what it says."""

from __future__ import annotations

import copy
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras._gradients.distributed_class import is_distributed
from hvd_keras.ops import _xla_library

pytestmark = pytest.mark.thorough(1, 4)

optimizers = keras.optimizers
MSE = keras.losses.mean_squared_error  # H5 files lose short names
needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


@pytest.fixture
def dynamic_sets() -> Iterator[None]:
    """Lets the test add sets, and removes them at its end."""
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
    hvd.init()


def fitted(
    wrap: Callable[[Any, keras.Model], Any],
    data: tf.data.Dataset,
    optimizer: Any = None,
    **compile_options: Any,
) -> keras.Model:
    model = kt.build(kt.functional_model)
    optimizer = optimizer or optimizers.Adam(0.01)
    model.compile(wrap(optimizer, model), MSE, **compile_options)
    model.fit(data, epochs=2, verbose=0)
    return model


def plain(optimizer: Any, model: keras.Model) -> Any:
    return optimizer


def lists(model: keras.Model) -> list[list[Any]]:
    a, b, c, _ = model.trainable_variables
    return [[a, c], [b]]


OPTIONS: dict[str, Callable[[keras.Model], dict[str, Any]]] = {
    "groups": lambda model: {"groups": 2},
    "many_groups": lambda model: {"groups": 100},
    "num_groups": lambda model: {"num_groups": 1},
    "lists": lambda model: {"groups": lists(model)},
    "predivide": lambda model: {"gradient_predivide_factor": 2.0},
    "device": lambda model: {"device_dense": "/cpu:0"},
    "accumulate_predivide_groups": lambda model: {
        "gradient_predivide_factor": 8.0,
        "groups": 3,
        "backward_passes_per_step": 4,
    },
}


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    "eager", [False, pytest.param(True, marks=pytest.mark.ranks(2))]
)
@pytest.mark.parametrize(
    "case",
    thorough_except(OPTIONS, "accumulate_predivide_groups"),
)
def test_ranks_end_with_the_weights_of_one_process(
    case: str, eager: bool
) -> None:
    data = kt.regression_data()
    steps = 4 if case.startswith("accumulate") else None
    expected = fitted(
        plain,
        kt.whole_batches(*data),
        optimizers.Adam(0.01, gradient_accumulation_steps=steps),
    )
    model = fitted(
        lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, **OPTIONS[case](model)
        ),
        kt.shares(*data),
        run_eagerly=eager,
    )
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    kt.assert_equal_on_all_ranks(model.get_weights())


def test_each_group_is_reduced_as_one() -> None:
    variables = [tf.Variable([float(n)]) for n in range(6)]
    counts = {}
    for groups in (None, 1, 2, 4, 100, [[variables[0], variables[5]]]):
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(), groups=groups)
        optimizer.build(variables)
        optimizer.apply([tf.ones(1)] * 6, variables)  # compares the lists
        before = hvd.stats()["num_requests"]
        optimizer.apply([tf.ones(1)] * 6, variables)
        counts[str(groups)[:3]] = hvd.stats()["num_requests"] - before
    assert list(counts.values()) == [1, 1, 2, 4, 6, 5]


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients(compression: str, rank: int, size: int) -> None:
    variable = tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0), compression=getattr(hvd.Compression, compression)
    )
    # 8 or 11 bits of mantissa lose this, 24 bits keep it.
    gradient = tf.constant([1.0 + 2.0**-12, rank * 2.0])
    optimizer.apply([gradient], [variable])
    np.testing.assert_array_equal(variable, [-1.0, -(size - 1.0)])
    assert variable.dtype == tf.float32


def test_adasum_adds_orthogonal_and_averages_equal_gradients(
    rank: int, size: int
) -> None:
    apart, alike = tf.Variable(tf.zeros(size)), tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), op=hvd.Adasum)
    one_hot = tf.one_hot(rank, size)
    optimizer.apply([one_hot, tf.constant([3.0, 4.0])], [apart, alike])
    np.testing.assert_allclose(apart, -np.ones(size), rtol=1e-6)
    np.testing.assert_allclose(alike, [-3.0, -4.0], rtol=1e-6)


def test_compressed_training_stays_near_plain_training() -> None:
    data = kt.regression_data()
    expected = fitted(plain, kt.whole_batches(*data), optimizers.SGD(0.1))
    model = fitted(
        lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, compression=hvd.Compression.fp16
        ),
        kt.shares(*data),
        optimizers.SGD(0.1),
    )
    kt.assert_close(model.get_weights(), expected.get_weights(), 5e-3)
    kt.assert_equal_on_all_ranks(model.get_weights())


def apply_once(optimizer: Any, variable: tf.Variable, rank: int) -> float:
    variable.assign([0.0])
    optimizer.apply([tf.constant([rank + 1.0])], [variable])
    return -float(variable[0])


@needs_peers
@pytest.mark.usefixtures("dynamic_sets")
@pytest.mark.parametrize("is_new_job", [False, True])
def test_a_process_set_may_be_made_again(
    is_new_job: bool, rank: int, size: int
) -> None:
    def distributed(ranks: hvd.ProcessSet, optimizer: Any = None) -> Any:
        return hvd.DistributedOptimizer(
            optimizer or optimizers.SGD(1.0), process_set=ranks
        )

    variable = tf.Variable([0.0])
    first = hvd.add_process_set(range(1, size))
    mean = (size + 2) / 2 if rank else 1.0
    kept = distributed(first)
    assert apply_once(kept, variable, rank) == mean
    if is_new_job:
        hvd.shutdown()
        second = hvd.ProcessSet(range(1, size))
        hvd.init(process_sets=[second])
    else:
        hvd.remove_process_set(first)
        second = hvd.add_process_set(range(1, size))
    assert first.process_set_id is None
    assert apply_once(distributed(second), variable, rank) == mean
    with pytest.raises(hvd.InvalidArgumentError, match="must be registered"):
        apply_once(kept, variable, rank)
    distributed(second, kept)
    assert apply_once(kept, variable, rank) == mean


@needs_peers
@pytest.mark.usefixtures("dynamic_sets")
def test_the_ranks_of_a_process_set_train_together(rank: int) -> None:
    # Ranks outside the set train alone; rank 0 has its own set here.
    some = hvd.add_process_set([0])
    try:
        data = kt.regression_data()
        mine = kt.shares(*data)
        expected = fitted(plain, mine)
        model = fitted(
            lambda optimizer, model: hvd.DistributedOptimizer(
                optimizer, process_set=some
            ),
            mine,
        )
        kt.assert_close(model.get_weights(), expected.get_weights(), 1e-6)
    finally:
        hvd.remove_process_set(some)


@pytest.mark.skipif("hvd.size() < 4", reason="needs 4 ranks")
@pytest.mark.usefixtures("dynamic_sets")
def test_two_process_sets_train_side_by_side(rank: int) -> None:
    sets = [hvd.add_process_set([0, 3]), hvd.add_process_set([1, 2])]
    mine = sets[0] if sets[0].included() else sets[1]
    try:
        x, y = kt.regression_data()
        y = y + (1.0 if mine is sets[0] else -1.0)
        half = kt.BATCH // 2
        rows = slice(mine.rank() * half, (mine.rank() + 1) * half)
        share = kt.whole_batches(x, y).map(lambda a, b: (a[rows], b[rows]))
        expected = fitted(plain, kt.whole_batches(x, y))
        model = fitted(
            lambda optimizer, model: hvd.DistributedOptimizer(
                optimizer, process_set=mine
            ),
            share,
        )
        kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    finally:
        for one in sets:
            hvd.remove_process_set(one)


@needs_peers
def test_a_set_that_is_not_registered_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(), process_set=hvd.ProcessSet([0])
    )
    with pytest.raises(ValueError, match="registered"):
        optimizer.apply([tf.ones(1)], [tf.Variable([1.0])])


# ---- Local variables ----


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("scale", [False, True])
def test_local_variables_keep_their_gradients(
    scale: bool, passes: int, rank: int, size: int
) -> None:
    shared, own = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0),
        scale_local_gradients=scale,
        backward_passes_per_step=passes,
    )
    optimizer.register_local_var(own)
    optimizer.build([shared, own])

    @tf.function
    def step() -> None:
        gradient = tf.constant([rank + 1.0])
        optimizer.apply([gradient, 2.0 * gradient], [shared, own])

    for _ in range(passes):
        step()
    assert shared.numpy() == [-(size + 1) / 2]
    wanted = -2.0 * (rank + 1) / (size if scale else 1)
    assert own.numpy() == np.float32([wanted])
    with pytest.raises(ValueError, match="before the first step"):
        optimizer.register_local_var(shared)


def test_local_variables_may_be_tensorflow_variables_of_keras(
    rank: int,
) -> None:
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0),
        scale_local_gradients=False,
        groups=[[variable.value for variable in variables]],
    )
    optimizer.register_local_var(variables[0].value)
    optimizer.apply([tf.constant([rank + 1.0])] * 2, variables)
    assert variables[0].numpy() == [-(rank + 1.0)]


@pytest.mark.parametrize("groups", [False, True])
def test_variables_that_are_not_trained_are_refused(groups: bool) -> None:
    trained, other = tf.Variable([0.0]), tf.Variable([0.0], name="other")
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0), groups=[[trained, other]] if groups else None
    )
    if not groups:
        optimizer.register_local_var(other)
    with pytest.raises(ValueError, match="'other:0', which is not one of"):
        optimizer.apply([tf.ones(1)], [trained])


def test_local_variables_survive_a_copy(rank: int) -> None:
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0), scale_local_gradients=False
    )
    optimizer.register_local_var(variable)
    copy.deepcopy(optimizer).apply([tf.constant([rank + 1.0])], [variable])
    assert variable.numpy() == [-(rank + 1.0)]


@pytest.mark.parametrize("sparse", [False, True])
def test_local_layers_train_alone(sparse: bool, rank: int, size: int) -> None:
    make = kt.embedding_model if sparse else kt.functional_model
    data = kt.regression_data()
    share = kt.shares(*data).take(1)
    model = kt.build(make)
    layers = [layer for layer in model.layers if layer.trainable_variables]
    optimizer = hvd.PartialDistributedOptimizer(
        optimizers.SGD(0.5), local_layers=layers[0]
    )
    model.compile(optimizer, "mse")
    model.fit(share, verbose=0)

    alone = kt.build(make)
    alone.compile(optimizers.SGD(0.5 / size), "mse")
    alone.fit(share, verbose=0)
    together = kt.build(make)
    together.compile(optimizers.SGD(0.5), "mse")
    together.fit(kt.whole_batches(*data).take(1), verbose=0)
    num_local = len(layers[0].trainable_variables)
    weights = model.get_weights()
    kt.assert_close(weights[:num_local], alone.get_weights()[:num_local], 1e-5)
    kt.assert_close(
        weights[num_local:], together.get_weights()[num_local:], 1e-5
    )


def test_local_layers_may_be_built_later(rank: int) -> None:
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    optimizer = hvd.PartialDistributedOptimizer(
        optimizers.SGD(1.0), local_layers=[layer], scale_local_gradients=False
    )
    model = keras.Sequential([layer])
    model.compile(optimizer, lambda y, prediction: prediction)
    x = np.full((2, 1), rank + 1.0, np.float32)
    model.fit(x, x, batch_size=2, verbose=0)
    assert layer.kernel.numpy() == [[-(rank + 1.0)]]


@needs_peers
def test_global_clipnorm_with_local_variables_is_refused() -> None:
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(1.0, global_clipnorm=1.0)
    )
    optimizer.register_local_var(variable)
    with pytest.raises(ValueError, match="global_clipnorm"):
        optimizer.apply([tf.ones(1)], [variable])


# ---- XLA ----


@pytest.mark.parametrize("problem", [None, "it is too old"])
def test_auto_turns_xla_off_where_it_cannot_run_collectives(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int,
    problem: str | None,
) -> None:
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [gpu])
    monkeypatch.setattr(_xla_library, "problem", lambda: problem)
    monkeypatch.setattr(logging.getLogger("hvd_keras"), "propagate", True)
    may_use_xla = size == 1 or problem is None
    model = kt.build(kt.functional_model)
    for _ in range(2):
        model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
        assert model.jit_compile == may_use_xla
    assert ("it is too old" in caplog.text) == (not may_use_xla)
    model.compile(model.optimizer, "mse", jit_compile=True)
    assert model.jit_compile
    model.compile(optimizers.SGD(0.1), "mse")
    assert model.jit_compile


# ---- Saving ----


@pytest.mark.thorough(4)
@pytest.mark.parametrize("suffix", thorough_except(["keras", "h5"], "keras"))
def test_a_loaded_model_resumes_where_it_was_saved(
    suffix: str, tmp_path: pathlib.Path
) -> None:
    data = kt.regression_data()
    expected = fitted(plain, kt.whole_batches(*data))
    expected.fit(kt.whole_batches(*data), verbose=0)

    path = tmp_path / f"model.{suffix}"
    model = fitted(
        lambda optimizer, model: hvd.DistributedOptimizer(optimizer),
        kt.shares(*data),
    )
    model.save(path)
    loaded = hvd.load_model(path, gradient_predivide_factor=2.0)
    assert is_distributed(loaded.optimizer)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
    loaded.fit(kt.shares(*data), verbose=0)
    kt.assert_close(loaded.get_weights(), expected.get_weights(), 2e-5)


@needs_peers
def test_a_model_loaded_on_one_rank_has_the_slots_of_the_others(
    tmp_path: pathlib.Path, rank: int
) -> None:
    model = kt.build(kt.functional_model)
    model.compile(optimizers.LossScaleOptimizer(optimizers.Adam(0.1)), MSE)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.h5")
    if rank == 0:
        model = hvd.load_model(tmp_path / "model.h5")
    else:
        hvd.DistributedOptimizer(model.optimizer)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback()
    model.fit(kt.shares(*kt.regression_data()), callbacks=[callback], verbose=0)
    kt.assert_equal_on_all_ranks(model.get_weights())


def test_load_model_without_an_optimizer(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.keras"
    kt.build(kt.functional_model).save(path)
    loaded = hvd.load_model(path)
    assert getattr(loaded, "optimizer", None) is None
