"""The private names of Keras that hvd_keras leans on, on any backend.

Each is named here once and checked when this module is imported, so that a new
release of Keras that moves one fails here, in words, and not in the middle of
a training run. Those of a running `fit` are in `fit.py`, those of one
backend in `tensorflow.py` and `jax.py`; everything else in
hvd_keras uses public names.

| Name | Used to |
|---|---|
| `Optimizer._clip_gradients` | reduce gradients before they are clipped |
| `Optimizer._backend_apply_gradients` | learn whose gradients they are |
| `Optimizer._trainable_variables` | number the variables |
| `Optimizer._accumulated_gradients` | keep partial sums on their rank |
| `Optimizer._iterations` | count batches, and updates, while accumulating |
| `Optimizer._get_current_learning_rate` | give a schedule the updates |
| `Optimizer._update_model_variables_moving_average` | average once an update |
| `Optimizer._overwrite_model_variables_with_average_value` | the same |
| `Optimizer._model_variables_moving_average` | the same |
| `Optimizer._unpickle_model` | pickle an optimizer whose class was swapped |
| `LossScaleOptimizer.check_finite` | skip a step on all ranks or on none |
| `Variable._value` | know a variable of Keras by that of TensorFlow in it |
| `RMSprop._momentums` | correct the momentum when the rate changes |
| `Model._get_metrics_result_or_logs` | sum metric states over the ranks |
| `Model._flatten_layers` | see that a model has all its weights |
| `Trainer._resolve_auto_jit_compile` | keep XLA off unless it is asked for |
| `load_optimizer_weights_from_hdf5_group` | load an optimizer from H5 |
| `REGISTERED_OBJS_TO_NAMES` | save a swapped optimizer under Keras's name |
| `GLOBAL_CUSTOM_NAMES` | the same for a user's registered optimizer |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends
from hvd_keras._keras.lookup import private_module, require

_api_export = private_module("api_export")
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
    require(
        keras.Model, "_flatten_layers", ["self", "include_self", "recursive"]
    )
    require(keras.Model, "_resolve_auto_jit_compile", ["self"])
    require(_legacy_h5_format, "load_optimizer_weights_from_hdf5_group")
    require(_api_export, "REGISTERED_OBJS_TO_NAMES")
    require(_object_registration, "GLOBAL_CUSTOM_NAMES")


class ReducingOptimizer:
    """Mixin in front of a Keras optimizer: reduces before clipping.

    While gradients are accumulated, Keras moves the average of the weights and
    the schedule on with every batch. Here it is with every update, as if the
    accumulated batches were one.

    A subclass defines `hvd_reduce`, `hvd_begin_apply` and `hvd_end_apply`.
    """

    hvd_schedule_counts_batches = False
    gradient_accumulation_steps: int | None
    iterations: Any

    def hvd_reduce(
        self, gradients: list[Any], variables: list[Any] | None
    ) -> list[Any]:
        raise NotImplementedError

    def hvd_begin_apply(self, gradients: Any) -> None:
        raise NotImplementedError

    def hvd_end_apply(self, variables: Sequence[Any]) -> None:
        raise NotImplementedError

    def apply(
        self, grads: Any, trainable_variables: Sequence[Any] | None = None
    ) -> None:
        grads = list(grads)
        self.hvd_begin_apply(grads)
        super().apply(grads, trainable_variables)  # type: ignore[misc]
        if len(grads):
            self.hvd_end_apply(
                trainable_variables or trainable_variables_of(self)
            )

    def _backend_apply_gradients(
        self, grads: Any, trainable_variables: Any
    ) -> None:
        # What arrives here is free of None; `_clip_gradients`, which Keras
        # calls next (in a branch when it accumulates), gets gradients alone.
        vars(self)["_hvd_variables"] = list(trainable_variables)
        try:
            super()._backend_apply_gradients(  # type: ignore[misc]
                grads, trainable_variables
            )
        finally:
            del vars(self)["_hvd_variables"]

    def _clip_gradients(self, grads: Any) -> Any:
        variables = vars(self).get("_hvd_variables")
        reduced = _backends.current().reduce_at_updates(
            self,
            lambda gradients: self.hvd_reduce(gradients, variables),
            list(grads),
        )
        return super()._clip_gradients(reduced)  # type: ignore[misc]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        from hvd_keras._keras import tensorflow as keras_tensorflow

        if keras_tensorflow.is_in_our_strategy():
            return grads_and_vars  # summed already, before they were clipped
        return super()._all_reduce_sum_gradients(  # type: ignore[misc]
            grads_and_vars
        )

    def _get_current_learning_rate(self) -> Any:
        schedule = vars(self).get("_learning_rate")
        if (
            not self.gradient_accumulation_steps
            or self.hvd_schedule_counts_batches
            or not isinstance(
                schedule, keras.optimizers.schedules.LearningRateSchedule
            )
        ):
            return super()._get_current_learning_rate()  # type: ignore[misc]
        return schedule(self.iterations)

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        self._at_update(
            super()._update_model_variables_moving_average,  # type: ignore[misc]
            trainable_variables,
            changes=require(self, "_model_variables_moving_average"),
        )

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        self._at_update(
            super()._overwrite_model_variables_with_average_value,  # type: ignore[misc]
            trainable_variables,
            changes=trainable_variables,
        )

    def _at_update(
        self,
        call: Callable[[Any], None],
        variables: Sequence[Any],
        *,
        changes: Sequence[Any],
    ) -> None:
        """Calls, but not for a batch whose gradients are only accumulated."""
        if self.gradient_accumulation_steps and "_hvd_variables" in vars(self):
            _backends.current().call_if(
                is_update(self), lambda: call(variables), changes
            )
        else:
            call(variables)


def is_update(optimizer: Any) -> Any:
    """Whether this batch ends an accumulation of gradients; a tensor."""
    num_batches = require(optimizer, "_iterations") + 1
    steps = optimizer.gradient_accumulation_steps
    return keras.ops.equal(num_batches % steps, 0)


def identity_of(variable: Any) -> int:
    """Returns the `id` of a variable of TensorFlow, alone or in Keras's.

    Not of `value`, which is another tensor in a layer that casts. On other
    backends than TensorFlow, what is in a variable changes.
    """
    is_wrapped = keras.backend.backend() == "tensorflow"
    value = getattr(variable, "_value", None) if is_wrapped else None
    return id(variable if value is None else value)


def trainable_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables an optimizer was built for, in order."""
    return list(require(optimizer, "_trainable_variables"))


def gradient_accumulators_of(optimizer: Any) -> list[Any]:
    """Returns the sums of gradients that belong to this rank alone."""
    if not optimizer.gradient_accumulation_steps or not optimizer.built:
        return []
    return list(require(optimizer, "_accumulated_gradients"))


def rate_scaled_momentums_of(optimizer: Any) -> list[Any]:
    """Returns the momentum buffers that contain the learning rate.

    SGD and RMSprop have such buffers; those of Adam and its kin average the
    gradients themselves and need no correction when the rate changes.
    """
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        return list(optimizer.momentums)
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return list(require(optimizer, "_momentums"))
    return []


def is_fully_built(model: Any) -> bool:
    """Whether the model and all layers in it have their weights."""
    return all(layer.built for layer in model._flatten_layers())


def unpickler_of(optimizer_class: type) -> Callable[..., Any]:
    """Returns the function that pickles of `optimizer_class` call."""
    return optimizer_class._unpickle_model  # type: ignore[attr-defined]


def share_saved_name(subclass: type, base: type) -> None:
    """Makes Keras save `subclass` under the name that `base` has."""
    for table in (
        _api_export.REGISTERED_OBJS_TO_NAMES,
        _object_registration.GLOBAL_CUSTOM_NAMES,
    ):
        if base in table:
            table[subclass] = table[base]


def patch_check_finite(
    wrap: Callable[[Any, Any, Callable[[Any, Any], Any]], Any],
) -> None:
    """Makes `LossScaleOptimizer` call `wrap(self, grads, original)`.

    A second call does nothing.
    """
    owner = keras.optimizers.LossScaleOptimizer
    original = owner.check_finite
    if getattr(original, "_hvd_wrapped", False):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        return wrap(self, grads, original)

    check_finite._hvd_wrapped = True  # type: ignore[attr-defined]
    owner.check_finite = check_finite


def patch_auto_jit_compile(refuses: Callable[[Any], bool]) -> None:
    """Makes `jit_compile="auto"` mean False where `refuses(model)`.

    A second call does nothing.
    """
    name = "_resolve_auto_jit_compile"
    owner: Any = next(c for c in keras.Model.__mro__ if name in vars(c))
    original = getattr(owner, name)
    if getattr(original, "_hvd_wrapped", False):
        return

    def resolve(self: Any) -> bool:
        return not refuses(self) and bool(original(self))

    resolve._hvd_wrapped = True  # type: ignore[attr-defined]
    setattr(owner, name, resolve)


def optimizer_values_in_h5(filepath: Any) -> list[Any]:
    """Returns the arrays of an optimizer's variables in a model's file."""
    import h5py

    with h5py.File(filepath, "r") as file:
        group = _legacy_h5_format.load_optimizer_weights_from_hdf5_group(file)
        return [np.asarray(value) for value in group]


check_names()
