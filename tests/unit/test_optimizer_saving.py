"""A distributed optimizer is saved, copied and pickled as the plain one."""

from __future__ import annotations

import copy
import gc
import json
import pathlib
import pickle
import weakref
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras._gradients.distributed_class import is_distributed, unwrapped

optimizers = keras.optimizers


pytestmark = pytest.mark.usefixtures("_job")


def compiled(optimizer: optimizers.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def fit(model: keras.Model) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
    model.fit(x, x[:, :2], verbose=0, epochs=2)


def values(optimizer: optimizers.Optimizer) -> list[np.ndarray]:
    return [np.asarray(variable.numpy()) for variable in optimizer.variables]


def assert_same_state(one: object, other: object) -> None:
    for ours, theirs in zip(values(one), values(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_swap_keeps_the_object_and_its_slots() -> None:
    plain = optimizers.Adam(0.01)
    model = compiled(plain)
    fit(model)
    before = values(plain)
    optimizer = hvd.DistributedOptimizer(plain)
    assert optimizer is plain
    assert isinstance(optimizer, optimizers.Adam)
    assert is_distributed(optimizer)
    for ours, theirs in zip(values(optimizer), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(before) == 2 + 2 * 2
    fit(model)


def test_the_config_and_its_file_are_those_of_a_plain_run(
    tmp_path: pathlib.Path,
) -> None:
    configs = []
    for wrap in (lambda optimizer: optimizer, hvd.DistributedOptimizer):
        model = compiled(wrap(optimizers.Adam(0.01, name="same")))
        fit(model)
        path = tmp_path / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        configs.append(config["compile_config"]["optimizer"])
    assert configs[0] == configs[1]


def test_a_cloned_model_trains_apart() -> None:
    model = compiled(hvd.DistributedOptimizer(optimizers.Adam(0.01)))
    fit(model)
    clone = keras.models.clone_model(model)
    clone.compile(copy.deepcopy(model.optimizer), "mse")
    assert is_distributed(clone.optimizer)
    before = model.get_weights()
    fit(clone)
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert int(clone.optimizer.iterations) == 2


def test_a_registered_optimizer_of_a_user_keeps_its_name(
    tmp_path: pathlib.Path,
) -> None:
    @keras.saving.register_keras_serializable("ours")
    class Halved(optimizers.SGD):
        pass

    model = compiled(hvd.DistributedOptimizer(Halved(0.1)))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Halved


def test_pickle_gives_the_plain_optimizer() -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.03))
    fit(compiled(optimizer))
    loaded = pickle.loads(pickle.dumps(optimizer))
    assert type(loaded) is optimizers.Adam
    assert loaded.get_config() == optimizer.get_config()


def test_a_model_can_be_pickled() -> None:
    model = compiled(hvd.DistributedOptimizer(optimizers.Adam(0.03)))
    fit(model)
    loaded = pickle.loads(pickle.dumps(model))
    assert type(loaded.optimizer) is optimizers.Adam
    assert_same_state(loaded.optimizer, model.optimizer)


@pytest.mark.parametrize("copied_by", [copy.copy, copy.deepcopy])
def test_a_copy_stays_distributed(copied_by: Callable[[Any], Any]) -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.03), name="n")
    copied = copied_by(optimizer)
    assert copied is not optimizer
    assert type(copied) is type(optimizer)
    assert copied.get_config() == optimizer.get_config()
    fit(compiled(copied))


def test_from_config_stays_distributed() -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.03), op=hvd.Sum)
    made = type(optimizer).from_config(optimizer.get_config())
    assert type(made) is type(optimizer)
    assert made.hvd_settings == optimizer.hvd_settings
    assert made.hvd_settings.reduce.op == hvd.Sum
    fit(compiled(made))


def test_a_config_that_was_changed_stays_distributed() -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.03), op=hvd.Sum)
    config = optimizer.get_config()
    config["learning_rate"] = 0.5
    made = optimizer.from_config(config)
    assert made.hvd_settings.reduce.op == hvd.Sum
    assert float(made.learning_rate) == 0.5


def test_a_copied_config_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.03), op=hvd.Sum)
    config = pickle.loads(pickle.dumps(optimizer.get_config()))
    assert type(config) is dict
    with pytest.raises(ValueError, match=r"Optimizer\(Adam\.from_config"):
        type(optimizer).from_config(config)


def test_each_base_class_has_one_distributed_class() -> None:
    averages = hvd.DistributedOptimizer(optimizers.SGD(0.1))
    sums = hvd.DistributedOptimizer(optimizers.SGD(0.1), op=hvd.Sum)
    other = hvd.DistributedOptimizer(optimizers.Adam(0.1))
    assert type(averages) is type(sums)
    assert type(averages) is not type(other)
    ops = [each.hvd_settings.reduce.op for each in (averages, sums, other)]
    assert ops == [hvd.Average, hvd.Sum, hvd.Average]


def test_groups_do_not_keep_variables_alive() -> None:
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.1), groups=[variables]
    )
    optimizer.apply([tf.ones(1), tf.ones(1)], variables)
    seen = [weakref.ref(variable) for variable in variables]
    del variables, optimizer
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_the_class_of_a_users_optimizer_dies_with_it() -> None:
    class Halved(optimizers.SGD):
        pass

    optimizer = hvd.DistributedOptimizer(Halved(0.1))
    seen = [weakref.ref(Halved), weakref.ref(type(optimizer))]
    del Halved, optimizer
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_a_second_call_changes_nothing() -> None:
    optimizer = optimizers.SGD(0.1)
    hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    swapped = type(optimizer)
    hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    assert type(optimizer) is swapped


def test_a_second_call_with_other_arguments_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="made distributed once"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Sum)


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (2, 3)])
def test_a_second_call_with_other_backward_passes_is_refused(
    first: int, then: int
) -> None:
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.1), backward_passes_per_step=first
    )
    words = f"per_step={first}.*per_step={then}"
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=then)
    steps = optimizer.gradient_accumulation_steps
    assert steps == (None if first == 1 else first)


def test_accumulation_of_its_own_may_be_named_again() -> None:
    optimizer = optimizers.SGD(0.1, gradient_accumulation_steps=4)
    for passes in (1, 4, 1):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    assert optimizer.gradient_accumulation_steps == 4


def test_the_inner_optimizer_of_a_loss_scale_is_swapped() -> None:
    outer = optimizers.LossScaleOptimizer(optimizers.SGD(0.1))
    assert hvd.DistributedOptimizer(outer) is outer
    assert type(outer) is optimizers.LossScaleOptimizer
    assert is_distributed(outer)
    assert is_distributed(unwrapped(outer))


def test_check_finite_is_patched_once_and_only_for_us() -> None:
    hvd.DistributedOptimizer(optimizers.SGD(0.1))
    patched = optimizers.LossScaleOptimizer.check_finite
    hvd.DistributedOptimizer(optimizers.SGD(0.1))
    assert optimizers.LossScaleOptimizer.check_finite is patched
    plain = optimizers.LossScaleOptimizer(optimizers.SGD(0.1))
    before = hvd.stats()["num_requests"]
    assert bool(plain.check_finite([np.float32([1.0])]))
    assert not bool(plain.check_finite([np.float32([np.inf])]))
    assert hvd.stats()["num_requests"] == before


def test_backward_passes_set_keras_accumulation() -> None:
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.1), backward_passes_per_step=4
    )
    assert optimizer.gradient_accumulation_steps == 4
    own = optimizers.SGD(0.1, gradient_accumulation_steps=4)
    own.build([keras.Variable([0.0])])
    hvd.DistributedOptimizer(own, backward_passes_per_step=4)


def test_backward_passes_are_refused_where_they_cannot_be_set() -> None:
    built = optimizers.SGD(0.1)
    built.build([keras.Variable([0.0])])
    with pytest.raises(ValueError, match="before the optimizer is built"):
        hvd.DistributedOptimizer(built, backward_passes_per_step=2)
    assert not is_distributed(built)
    other = optimizers.SGD(0.1, gradient_accumulation_steps=3)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=3"):
        hvd.DistributedOptimizer(other, backward_passes_per_step=2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"backward_passes_per_step": 0}, ValueError, ">= 1"),
        ({"backward_passes_per_step": 2.0}, ValueError, ">= 1"),
        ({"typo": 1}, TypeError, "typo"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(
    options: dict, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        hvd.DistributedOptimizer(optimizers.SGD(0.1), **options)


def test_options_that_ask_for_nothing_are_accepted() -> None:
    hvd.DistributedOptimizer(
        optimizers.SGD(0.1), gradient_predivide_factor=1.0, compression=None
    )


def test_names_and_configs_are_taken_as_by_keras() -> None:
    config = optimizers.serialize(optimizers.SGD(0.25, momentum=0.5))
    for make in (hvd.DistributedOptimizer, hvd.PartialDistributedOptimizer):
        adam, sgd = make("adam"), make(config)
        assert isinstance(adam, optimizers.Adam)
        assert (float(sgd.learning_rate), sgd.momentum) == (0.25, 0.5)
        assert is_distributed(adam)
        assert is_distributed(sgd)
    with pytest.raises(ValueError, match="sdg"):
        hvd.DistributedOptimizer("sdg")


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Keras 3 optimizer.*builtins\.float"):
        hvd.DistributedOptimizer(0.1)
