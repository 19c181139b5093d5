"""Knows the step of a `fit` or `evaluate` that runs, whoever wrote it.

While a call runs, `train_step` and `test_step` of its model are attributes of
the model that note each step, and then do what the class says. A step has the
batch without the weights that `hvd.shard` has added in order to mark rows that
only fill it: a `train_step` of the user's gets what the data held.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs, models
from hvd_keras._keras.filled_metrics import without_filling
from hvd_keras._keras.lookup import owner_of, private_module
from hvd_keras._keras.specs import specs_of

_symbolic_scope: Any = private_module("backend.common.symbolic_scope")


# An attribute of a model in `vars(model)`: that of its training and test steps.
_PARTS = "_hvd_has_parts_of_loss"


class Step:
    """A step that runs or is traced.

    Attributes:
        call: The call of Keras's method that it belongs to.
        model: The model.
        training: Whether it trains.
        x, y, sample_weight: The batch, as Keras unpacks it.
        marks: The weights that mark filling, if `sample_weight` lacks them.
        batch: What the layer above has made of it, or None.
        hides_loss: Whether it is Keras's own, or calls that: the user's part
            of it does not see the loss.
    """

    def __init__(self, call: Any, data: Any, training: bool) -> None:
        self.call = call
        self.model = call.model
        self.training = training
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.x, self.y, self.sample_weight = x, y, weights
        self.marks: Any = None
        if call.rows.adds_weights:
            if weights is None:
                raise ValueError(
                    "What maps data from `hvd.shard` must keep the last entry "
                    "of (x, y, weights), which marks rows that only fill a "
                    "batch: `map(lambda x, *rest: (change(x), *rest))`. "
                    "Received: batches without it."
                )
            self.marks, self.sample_weight = weights, None
        self.batch: Any = None
        self.hides_loss = False

    def note_loss(self, *, is_part: bool) -> None:
        """Notes whether its loss has the weight of this rank's rows."""
        # A later call may use what was traced.
        parts = vars(self.model).setdefault(_PARTS, {})
        parts[self.training] = is_part and not self.hides_loss

    @property
    def own_method(self) -> str | None:
        """The method of the step that the user has written, if any."""
        return own_method_of(self.model, self.training)


_running: contextvars.ContextVar[Step | None] = contextvars.ContextVar(
    "_running_step", default=None
)


def has_parts_of_loss(call: keras_calls.Call) -> bool:
    """Whether what a step logs of its loss has the weight of its rows."""
    parts: dict[bool, bool] = vars(call.model).get(_PARTS, {})
    return parts.get(call.method == "fit", False)


def own_method_of(model: Any, training: bool) -> str | None:
    """Returns the method of a model's steps that the user has written."""
    for name in ("train_step" if training else "test_step", "compute_loss"):
        home = getattr(getattr(type(model), name), "__module__", "")
        if not home.startswith("keras."):
            return f"`{name}` of {type(model).__name__}"
    return None


def running_step() -> Step | None:
    """Returns the step that runs or is traced, if it belongs to a call."""
    return _running.get()


def running_batch() -> Any:
    """Returns the batch of the training step that runs, or None."""
    step = _running.get()
    return None if step is None or not step.training else step.batch


_Around = Callable[[Step], contextlib.AbstractContextManager[None]]


def install(
    begin: Callable[[Step], Any],
    around: _Around,
    end: Callable[[Step], None],
) -> None:
    """Lets `begin(step)` make the batch of each step that begins.

    A step that has one runs, or is traced, in the context `around(step)`. Then
    `end(step)` is called.
    """
    epochs.at_data.add(functools.partial(_watch, begin, around, end))
    keras_calls.at_end.add(_forget)
    replace(owner_of("train_step"), "train_step", _marking)
    replace(owner_of("test_step"), "test_step", _marking)


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives Keras's own steps the marks where a batch is filled in part."""

    def own_step(self: Any, *args: Any, **kw: Any) -> Any:
        step = _running.get()
        if step is None or step.model is not self or step.batch is None:
            return original(self, *args, **kw)
        step.hides_loss = True
        if step.marks is None or not step.batch.is_partial:
            return original(self, *args, **kw)
        *state, data = [*args, *kw.values()]
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        weights = step.marks if weights is None else weights
        return original(self, *state, (x, y, weights))

    return own_step


class _Watched:
    """Stands in for a model's `train_step` or `test_step` during a call."""

    def __init__(
        self,
        begin: Callable[[Step], Any],
        around: _Around,
        end: Callable[[Step], None],
        original: Any,
        training: bool,
    ) -> None:
        self._begin, self._around, self._end = begin, around, end
        self._original = original
        self._training = training
        functools.update_wrapper(self, original)

    def __call__(self, *args: Any, **kw: Any) -> Any:
        call = next(iter(keras_calls.running_calls()), None)
        outer = _running.get()
        if (
            call is None
            or _symbolic_scope.in_symbolic_scope()
            or (outer is not None and outer.call is call)
        ):
            return self._original(*args, **kw)
        *state, data = [*args, *kw.values()]
        step = Step(call, data, self._training)
        is_new = self._training and call.step_specs is None
        if is_new and keras_calls.has_front():
            call.step_specs = specs_of(step.x)
            own = data if step.marks is None else (step.x, step.y)
            call.data_specs = specs_of(own)
        if call.class_weight and self._training:
            weights = _class_weights(step.y, call.class_weight)
            if step.marks is not None:
                shape = [-1] + [1] * (len(weights.shape) - 1)
                marks = keras.ops.cast(step.marks, weights.dtype)
                weights = weights * keras.ops.reshape(marks, shape)
            step.sample_weight, step.marks = weights, None
            data = (step.x, step.y, weights)
        elif step.marks is not None:
            data = (step.x, step.y)
        before = _running.set(step)
        try:
            step.batch = self._begin(step)
            if step.batch is None:
                return self._original(*state, data)
            metrics = []
            if step.batch.is_partial:
                metrics = models.own_metrics_of(step.model)
            with self._around(step), without_filling(metrics, step.batch):
                if step.batch.is_real is None:
                    result = self._original(*state, data)
                else:
                    result = self._without_updates(step, state, data)
            self._end(step)
            return result
        finally:
            _running.reset(before)

    def _without_updates(self, step: Step, state: Any, data: Any) -> Any:
        """Runs a step that leaves metrics alone if no row of it counts."""
        is_real = step.batch.is_real
        if state:  # on JAX; the values of the metrics are its last entry
            (*others, metrics), *more = state
            logs, after = self._original((*others, metrics), *more, data)
            *others, updated = after
            kept = [
                keras.ops.where(is_real, new, old)
                for new, old in zip(updated, metrics, strict=True)
            ]
            return logs, (*others, kept)
        before_building = _running.set(None)
        models.build_metrics(step.model, data)
        _running.reset(before_building)
        variables = list(step.model.metrics_variables)
        before = [keras.ops.copy(v.value) for v in variables]
        logs = self._original(data)
        for variable, old in zip(variables, before, strict=True):
            new = keras.ops.convert_to_tensor(variable)
            variable.assign(keras.ops.where(is_real, new, old))
        return logs


def _watch(
    begin: Callable[[Step], Any],
    around: _Around,
    end: Callable[[Step], None],
    call: Any,
) -> None:
    if call.method == "predict":
        return
    for name, training in (("train_step", True), ("test_step", False)):
        original = getattr(call.model, name)
        if not _is_watched(original):
            vars(call.model)[name] = _Watched(
                begin, around, end, original, training
            )


def _is_watched(function: Any) -> bool:
    """Whether a method is watched, maybe behind a wrapper of another's."""
    while function is not None and not isinstance(function, _Watched):
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _forget(call: Any) -> None:
    """Gives the model its own methods back when its last call ends."""
    if any(other.model is call.model for other in keras_calls.running_calls()):
        return
    for name in ("train_step", "test_step"):
        watched = vars(call.model).get(name)
        if isinstance(watched, _Watched):
            del vars(call.model)[name]
            original = watched._original
            if getattr(original, "__func__", None) is not getattr(
                type(call.model), name, None
            ):
                vars(call.model)[name] = original  # the user had put it there


def _class_weights(y: Any, class_weight: dict[int, float]) -> Any:
    """Returns the weights of rows, or of their parts, as Keras has them."""
    if keras.tree.is_nested(y):
        raise ValueError(
            "`class_weight` is for models with one output. Received: targets "
            f"of the form {keras.tree.map_structure(lambda _: '.', y)}."
        )
    if len(y.shape) > 1:
        is_one_hot = y.shape[-1] != 1
        y = keras.ops.argmax(y, -1) if is_one_hot else keras.ops.squeeze(y, -1)
    y = keras.ops.cast(keras.ops.round(y), "int32")
    weights = [
        class_weight.get(each, 1.0) for each in range(max(class_weight) + 1)
    ]
    table = keras.ops.convert_to_tensor(weights, dtype=keras.config.floatx())
    known = keras.ops.minimum(y, len(weights) - 1)
    return keras.ops.where(
        y < len(weights), keras.ops.take(table, known, axis=0), 1.0
    )
