"""The private names of Keras that hvd_keras uses on every backend.

Each is named here once and checked when this module is imported. If a new
release of Keras moves one, the import fails with a clear message, and not in
the middle of a training run. `epochs.py` has the names for a running `fit`,
`tensorflow.py` and `jax.py` have those of one backend. Everything else in
hvd_keras uses public names. `optimizer.py` overrides the methods of an
optimizer; `patches.py` replaces the others.

| Name | Used to |
|---|---|
| `Optimizer._clip_gradients` | reduce gradients before they are clipped |
| `Optimizer._backend_apply_gradients` | learn whose gradients they are |
| `Optimizer._overwrite_variables_directly_with_gradients` | float8 |
| `Optimizer._trainable_variables` | number the variables |
| `Optimizer._accumulated_gradients` | keep partial sums on their rank |
| `Optimizer._iterations` | count batches, and updates, while accumulating |
| `Optimizer._get_current_learning_rate` | count updates in a schedule |
| `Optimizer._update_model_variables_moving_average` | average once an update |
| `Optimizer._overwrite_model_variables_with_average_value` | the same |
| `Optimizer._model_variables_moving_average` | the same |
| `Optimizer._unpickle_model` | pickle an optimizer whose class was swapped |
| `LossScaleOptimizer.check_finite` | skip a step on all ranks or on none |
| `Variable._value` | identify a Keras variable by the TensorFlow one in it |
| `RMSprop._momentums` | correct the momentum when the rate changes |
| `Model._get_metrics_result_or_logs` | sum metric states over the ranks |
| `Trainer._resolve_auto_jit_compile` | keep XLA off unless the user asks |
| `load_optimizer_weights_from_hdf5_group` | load an optimizer from H5 |
| `REGISTERED_OBJS_TO_NAMES` | save a swapped optimizer under Keras's name |
| `GLOBAL_CUSTOM_NAMES` | the same for a user's registered optimizer |
| `module_utils.tensorflow._available` | write configurations without it |
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras._keras.lookup import private_module, require

_api_export = private_module("api_export")
_lazy_modules = private_module("utils.module_utils")
_legacy_h5_format = private_module("legacy.saving.legacy_h5_format")
_object_registration = private_module("saving.object_registration")

GET_LOGS = "_get_metrics_result_or_logs"


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    optimizer = keras.optimizers.Optimizer
    require(optimizer, "_clip_gradients", ["self", "grads"])
    require(
        optimizer,
        "_backend_apply_gradients",
        ["self", "grads", "trainable_variables"],
    )
    require(
        optimizer,
        "_overwrite_variables_directly_with_gradients",
        ["self", "grads", "vars"],
    )
    require(optimizer, "_get_current_learning_rate", ["self"])
    for name in (
        "_update_model_variables_moving_average",
        "_overwrite_model_variables_with_average_value",
    ):
        require(optimizer, name, ["self", "trainable_variables"])
    require(optimizer, "_unpickle_model", ["bytesio"])
    require(
        keras.optimizers.LossScaleOptimizer, "check_finite", ["self", "grads"]
    )
    require(keras.Model, GET_LOGS, ["self", "logs"])
    require(keras.Model, "_resolve_auto_jit_compile", ["self"])
    require(_legacy_h5_format, "load_optimizer_weights_from_hdf5_group")
    require(_api_export, "REGISTERED_OBJS_TO_NAMES")
    require(_object_registration, "GLOBAL_CUSTOM_NAMES")
    require(type(_lazy_modules.tensorflow), "available")


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Keeps Keras from importing TensorFlow in order to write a configuration.

    It would do so to see whether a value is one of TensorFlow's. That takes
    seconds, and is never so before somebody has imported it.
    """
    lazy: Any = _lazy_modules.tensorflow
    if "tensorflow" in sys.modules:
        yield
        return
    known = lazy._available
    lazy._available = False
    try:
        yield
    finally:
        lazy._available = known


def identity_of(variable: Any) -> int:
    """Returns the `id` of a TensorFlow variable, alone or in a Keras variable.

    It does not use Keras's `value`, which is another tensor in a layer that
    casts. On other backends it returns the `id` of the Keras variable, because
    the tensor inside changes.
    """
    is_wrapped = keras.backend.backend() == "tensorflow"
    value = getattr(variable, "_value", None) if is_wrapped else None
    return id(variable if value is None else value)


def num_batches_seen_by(optimizer: Any) -> Any:
    """Returns the variable that counts the batches of an optimizer.

    `iterations` counts updates instead; while gradients accumulate, these are
    fewer.
    """
    return require(optimizer, "_iterations")


def trainable_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables an optimizer was built for, in order."""
    return list(require(optimizer, "_trainable_variables"))


def gradient_accumulators_of(optimizer: Any) -> list[Any]:
    """Returns the sums of gradients that belong to this rank alone."""
    if not optimizer.gradient_accumulation_steps or not optimizer.built:
        return []
    return list(require(optimizer, "_accumulated_gradients"))


def averages_of_weights(optimizer: Any) -> list[Any]:
    """Returns the moving averages that replace weights (`use_ema`)."""
    if not optimizer.use_ema or not optimizer.built:
        return []
    return list(require(optimizer, "_model_variables_moving_average"))


def slots_of(optimizer: Any, variable: Any) -> list[Any]:
    """Returns the variables that an optimizer has made for a trained one."""
    path = getattr(variable, "path", None)
    if path is None or not optimizer.built:
        return []
    prefix = path.replace("/", "_") + "_"
    return [
        slot
        for slot in optimizer.variables
        if slot.name.startswith(prefix) and slot.shape == variable.shape
    ]


def rate_scaled_momentums_of(optimizer: Any) -> list[Any]:
    """Returns the momentum buffers that contain the learning rate.

    SGD and RMSprop have such buffers. Those of Adam and similar optimizers
    average the gradients themselves, and stay right when the rate changes.
    """
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        return list(optimizer.momentums)
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return list(require(optimizer, "_momentums"))
    return []


def unpickler_of(optimizer_class: type) -> Callable[..., Any]:
    """Returns the function that loads pickles of `optimizer_class`."""
    return optimizer_class._unpickle_model  # type: ignore[attr-defined]


def share_saved_name(subclass: type, base: type) -> None:
    """Makes Keras save `subclass` under the name of `base`."""
    for table in (
        _api_export.REGISTERED_OBJS_TO_NAMES,
        _object_registration.GLOBAL_CUSTOM_NAMES,
    ):
        if base in table:
            table[subclass] = table[base]


def optimizer_values_in_h5(filepath: Any) -> list[Any]:
    """Returns an optimizer's variables, as arrays, from a model's H5 file."""
    import h5py

    with h5py.File(filepath, "r") as file:
        group = _legacy_h5_format.load_optimizer_weights_from_hdf5_group(file)
        return [np.asarray(value) for value in group]


check_names()
