"""Keras has the private names that we use, and few files name them."""

from __future__ import annotations

import importlib
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_keras._keras import callback_lists, normalization, resume
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras import names as private
from hvd_keras._keras import tensorflow as keras_tensorflow
from hvd_keras._keras.lookup import private_module, require


def test_names_exist() -> None:
    private.check_names()
    keras_epochs.check_names()
    keras_tensorflow.check_names()
    normalization.check_names()


def test_names_of_instances_exist() -> None:
    optimizer = keras.optimizers.RMSprop(
        momentum=0.5, gradient_accumulation_steps=2
    )
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    assert private.identity_of(variable) == id(variable.value)
    assert private.identity_of(variable.value) == id(variable.value)
    assert private.trainable_variables_of(optimizer) == [variable]
    assert len(private.gradient_accumulators_of(optimizer)) == 1
    assert len(private.rate_scaled_momentums_of(optimizer)) == 1


def test_names_of_a_running_fit_exist() -> None:
    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None) -> None:
            fit = keras_calls.running_fit()
            self.is_capped = keras_epochs.is_capped(fit)
            self.num_batches = keras_epochs.num_batches_of(fit)
            callback_list = callback_lists.beginning_callback_list()
            assert callback_list.callbacks[0] is self
            assert isinstance(callback_list._async_train, bool)
            assert hasattr(self.model, "_initial_epoch")
            resume.set_initial_epoch(self.model, 2)

    look = Look()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.zeros((6, 1))
    history = model.fit(
        rows, rows, 2, epochs=3, steps_per_epoch=1, callbacks=[look], verbose=0
    )
    assert (look.is_capped, look.num_batches) == (True, 3)
    assert history.epoch == [2]
    data = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(2)
    model.fit(data.repeat(), steps_per_epoch=1, callbacks=[look], verbose=0)
    assert look.num_batches == float("inf")


def test_adam_has_no_momentum_with_the_rate_in_it() -> None:
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable([0.0])])
    assert private.rate_scaled_momentums_of(optimizer) == []


def test_a_missing_name_is_named() -> None:
    with pytest.raises(ImportError, match=r"Optimizer\._gone.*is missing"):
        require(keras.optimizers.Optimizer, "_gone")


def test_changed_parameters_are_named() -> None:
    with pytest.raises(ImportError, match=r"takes \['self', 'grads'\]"):
        require(keras.optimizers.Optimizer, "_clip_gradients", ["self"])


def test_a_module_is_found_where_a_release_has_it() -> None:
    moved = ("backend.gone", "gone.backend", "backend")
    assert private_module(*moved) is importlib.import_module(
        "keras.src.backend"
    )
    with pytest.raises(
        ImportError, match=r"`keras\.src\.gone or keras\.src\.b"
    ):
        private_module("gone", "backend.gone")


def test_a_module_that_cannot_be_imported_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="other"):
        private_module("backend")


def test_names_of_the_strategy_exist() -> None:
    importlib.import_module("hvd_keras._keras.strategy")


def test_no_other_file_uses_keras_internals() -> None:
    package = pathlib.Path(private.__file__).parents[1]
    for path in package.rglob("*.py"):
        is_table = path.name == "replacement_table.py"
        if path.parent.name == "_keras" or is_table:
            continue
        assert not re.search(
            r"keras\.src|_clip_gradients\(|_backend_apply|_reduction_axes",
            path.read_text(),
        ), path
