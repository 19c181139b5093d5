"""Looks whether what a script computes takes each row of a batch by itself.

Ranks see the rows of a batch in parts. That is what one process does if a model
returns the same for a row in any batch, if a loss is a mean over rows, and if
the states of a metric are sums over rows. Of Keras's own that is known. What a
script has written is tried once a `fit`, on four rows of small numbers and on
both halves of them. All ranks do so, since it may run collectives.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._common.replacements import replace
from hvd_keras._keras import advice
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.specs import made, specs_of
from hvd_keras._keras.steps import own_method_of, running_step
from hvd_keras.callbacks import metric_average
from hvd_keras.distribution import _python_state, _step_trial

Array = np.ndarray[Any, Any]
_NUM_ROWS = 4
# Of the largest value. What couples rows differs by far more.
_TOLERANCE = 1e-4
_TOLERANCE_OF_HALF = 0.05
_LARGEST_STATE = 1_000_000  # elements

# What was tried, or is to be.
_known: weakref.WeakSet[Any] = weakref.WeakSet()
# Whether gradients of a model's own steps are means over rows; None: unknown.
_steps: weakref.WeakKeyDictionary[Any, bool | None] = (
    weakref.WeakKeyDictionary()
)


def install() -> None:
    """Notes with what losses of the script are called. Twice does nothing."""
    replace(keras.losses.Loss, "__call__", _noting_loss)


class RowChecks(keras.callbacks.Callback):
    """Tries what the script has written, after the first step of a `fit`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.set_model(model)
        self._metrics = _own_metrics(model)
        self._is_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        call = keras_calls.running_fit()
        if call is None:
            self._is_done = True
            return
        call.tries_steps = True
        # Also of a `fit` that fails before: the next one traces no step.
        call.at_end.append(functools.partial(self._tell_doubts, call))
        names = _normalizing_by_torch(self.model)
        if names and basics.rank() == 0:
            advice.tell_of_normalization_by_torch(self.model, names)
        for metric in self._metrics:
            if "update_state" not in vars(metric):
                metric.__dict__["update_state"] = _noting_metric(metric, call)
                forget = functools.partial(
                    metric.__dict__.pop, "update_state", None
                )
                call.at_end.append(forget)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if batch > 0:
            self._check()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._check()

    def _check(self) -> None:
        call = keras_calls.running_fit()
        if self._is_done or call is None:
            return
        self._is_done = True
        method = own_method_of(self.model, training=True)
        is_new = call.step_specs is not None and self.model not in _known
        tried = [each for each, _ in (*call.seen_losses, *call.seen_metrics)]
        if is_new:
            _known.add(self.model)
            is_new = method is not None or bool(_own_parts(self.model))
        if not (is_new or tried):  # all is Keras's own, or was tried
            self._tell_doubts(call)
            return
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        tells = basics.rank() == 0
        tried += [getattr(each, "fn", None) for each in tried]
        with _quiet(), _python_state.kept(self.model, *tried) as restore:
            kinds = [
                (loss.name, _kind_of_loss(loss, specs))
                for loss, specs in call.seen_losses
            ]
            metrics = [
                metric
                for metric, specs in call.seen_metrics
                if _is_no_sum(metric, specs)
            ]
            models: list[str] = []
            logs: list[str] = []
            if is_new:
                models = _coupling(self.model, call.step_specs)
                # `hvdrun --verify` would compare the trial, too.
                if method and "_hvd_verified" not in vars(self.model):
                    _steps[self.model], logs = _step_trial.try_step(
                        self.model, call, restore
                    )
        for metric in metrics:
            metric_average.average_over_ranks(metric)
        sums = [f"the loss {name!r}" for name, kind in kinds if kind == "sum"]
        others = [name for name, kind in kinds if kind == "whole"]
        models += [
            f"the loss {name!r}" for name, kind in kinds if kind == "coupled"
        ]
        if sums and tells:
            advice.tell_of_sum_of_rows(self.model, ", ".join(sums))
        if others and tells:
            advice.tell_of_losses_of_whole_batches(self.model, others)
        if metrics and tells:
            names = ", ".join(
                f"{metric.name!r} ({type(metric).__name__})"
                for metric in metrics
            )
            advice.tell_of_states_that_are_no_sums(self.model, names)
        if models and tells:
            advice.tell_of_coupled_rows(self.model, "; ".join(models))
        self._tell_doubts(call)
        if _steps.get(self.model) is False and tells:
            advice.tell_of_step_that_mixes_rows(self.model, str(method))
        if logs and tells:
            names = ", ".join(map(repr, logs))
            advice.tell_of_logs_that_are_no_means(self.model, names)

    def _tell_doubts(self, call: Any) -> None:
        """Tells what is doubtful, unless the trial has shown it to be right."""
        doubts, call.doubts = call.doubts, []
        for tell in () if _steps.get(self.model) else doubts:
            tell()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what the script's functions print or warn of."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _is_own(module: str) -> bool:
    return module.partition(".")[0] not in ("keras", "hvd_keras")


# ---- What steps call ----


def _noting_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_loss(
        self: Any, y_true: Any, y_pred: Any, *rest: Any, **kw: Any
    ) -> Any:
        step = running_step()
        if step is not None and step.training and self not in _known:
            _known.add(self)
            if _is_own_loss(self):
                specs = specs_of((y_true, y_pred))
                step.call.seen_losses.append((self, specs))
        return original(self, y_true, y_pred, *rest, **kw)

    return call_loss


def _is_own_loss(loss: Any) -> bool:
    function = getattr(loss, "fn", None)  # of a LossFunctionWrapper
    if function is not None and not _is_own(type(loss).__module__):
        return _is_own(str(getattr(function, "__module__", "")))
    return _is_own(type(loss).__module__)


def _own_metrics(model: Any) -> list[Any]:
    """Returns metrics of classes that are none of Keras's."""
    compiled = getattr(model, "_compile_metrics", None)
    of_user = getattr(compiled, "_user_metrics", None)
    flat = [*keras.tree.flatten(of_user), *model.metrics]
    found = {
        id(metric): metric
        for metric in flat
        if isinstance(metric, keras.metrics.Metric)
        and _is_own(type(metric).update_state.__module__)
    }
    return list(found.values())


def _noting_metric(metric: Any, call: Any) -> Callable[..., Any]:
    original = metric.update_state

    def update_state(*args: Any, **kw: Any) -> Any:
        step = running_step()
        if step is not None and step.training and metric not in _known:
            _known.add(metric)
            call.seen_metrics.append((metric, specs_of((args, kw))))
        return original(*args, **kw)

    return update_state


def _made(specs: Any, rows: slice) -> Any:
    return made(specs, _NUM_ROWS, rows)


_ALL, _FIRST, _LAST = (
    slice(0, _NUM_ROWS),
    slice(0, _NUM_ROWS // 2),
    slice(_NUM_ROWS // 2, _NUM_ROWS),
)


def _array(value: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(value), np.float64)


def _differs(one: Array, other: Array, dtype: str) -> bool:
    if one.shape != other.shape or not np.isfinite(one).all():
        return False  # unknown
    is_half = "16" in dtype or "16" in keras.config.dtype_policy().compute_dtype
    share = _TOLERANCE_OF_HALF if is_half else _TOLERANCE
    largest = np.max(np.abs(one), initial=0.0)
    gap = np.max(np.abs(one - other), initial=0.0)
    return bool(gap > share * largest + 1e-6)


def _tried(check: Callable[..., bool]) -> Callable[..., bool]:
    """Returns a check that knows nothing where it fails."""

    def tried(*args: Any) -> bool:
        try:
            return check(*args)
        except Exception:
            return False

    return tried


def _kind_of_loss(loss: Any, specs: Any) -> str:
    """Returns "" for a loss that is a mean over rows, as far as is known.

    Else "sum" or "whole" for one number of a batch, "coupled" for a value a row
    that depends on other rows.
    """
    kinds = (_kind_on(loss, specs, labels) for labels in ((), (0,)))
    return next(filter(None, kinds), "")


def _kind_on(loss: Any, specs: Any, labels: Sequence[int]) -> str:
    def values(*parts: slice) -> list[Array]:
        return [
            _array(loss.call(*made(specs, _NUM_ROWS, rows, labels=labels)))
            for rows in parts
        ]

    try:
        whole, again, *parts = values(_ALL, _ALL, _FIRST, _LAST)
    except Exception:
        return ""  # unknown
    if not np.array_equal(whole, again):
        return ""  # it draws
    dtype = keras.config.floatx()
    joined = np.concatenate(parts) if whole.ndim else np.mean(parts)
    if not _differs(whole, np.asarray(joined), dtype):
        return ""
    if whole.ndim:
        return "coupled"
    is_other = _differs(whole, np.asarray(np.sum(parts)), dtype)
    return "whole" if is_other else "sum"


@_tried
def _is_no_sum(metric: Any, specs: Any) -> bool:
    variables = list(metric.variables)

    def states(*parts: slice) -> list[Array]:
        metric.reset_state()
        for rows in parts:
            args, kw = _made(specs, rows)
            type(metric).update_state(metric, *args, **kw)
        return [_array(each) for each in variables]

    with _kept(variables):
        begin, first, last = states(), states(_FIRST), states(_LAST)
        wholes = states(_ALL), states(_FIRST, _LAST)
    return any(
        _differs(whole, one + other - none, variable.dtype)
        for found in wholes
        for whole, none, one, other, variable in zip(
            found, begin, first, last, variables, strict=True
        )
    )


# ---- Models ----


def _normalizing_by_torch(model: Any) -> str:
    """Returns the layers in which torch itself normalizes by a batch."""
    if keras.backend.backend() != "torch":
        return ""
    from torch.nn.modules.batchnorm import _BatchNorm

    found = [
        f"{layer.name!r}, with {type(module).__name__}"
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.TorchModuleWrapper)
        for module in layer.module.modules()
        if isinstance(module, _BatchNorm)
        and not type(module).__module__.startswith("hvd_keras.")
    ]
    return ", ".join(found[:3])


def _coupling(model: Any, specs: Any) -> list[str]:
    """Returns the names of what mixes the rows of a batch."""
    if not _own_parts(model):
        return []
    if type(model).call is not keras.Model.call:
        return [_described(model)] if _couples(model, specs) else []
    # Whose steps call its parts, such as those of a GAN.
    parts = [
        part
        for part in model._flatten_layers(recursive=False, include_self=False)
        if isinstance(part, keras.Model)
        and _own_parts(part)
        and getattr(part, "inputs", None)
    ]
    return [
        _described(part)
        for part in parts
        if _couples(part, _specs_of_inputs(part))
    ]


def _described(model: Any) -> str:
    """Returns the name of a model, and what may mix rows in it."""
    parts = _own_parts(model)
    more = ", ..." if len(parts) > 3 else ""
    return f"{model.name!r}, with {', '.join(parts[:3])}{more}"


def _specs_of_inputs(model: Any) -> Any:
    return specs_of(getattr(model, "_inputs_struct", model.inputs))


def _own_parts(model: Any) -> list[str]:
    """Returns the classes of layers and operations that we do not know."""
    found: dict[str, None] = {}
    for layer in model._flatten_layers():
        for each in (layer, *(getattr(layer, "operations", None) or ())):
            kind = type(each)
            is_known = isinstance(each, keras.layers.Layer) and not (
                isinstance(each, keras.layers.Lambda)
                or _is_own(kind.__module__)
            )
            if not is_known:
                found[kind.__name__] = None
    return list(found)


def _caller(model: Any) -> Callable[[Any], list[Any]]:
    """Returns what gets the outputs of a model, and what it adds to losses."""

    def flat(result: Any, losses: Any) -> list[Any]:
        means = [keras.ops.mean(each) for each in losses]
        return [*keras.tree.flatten(result), *means]

    def call(inputs: Any) -> list[Any]:
        result = model(inputs, training=False)
        return flat(result, model.losses)

    if keras.backend.backend() != "jax":
        return call
    import jax

    @jax.jit  # op by op each would be compiled
    def call_without_states(variables: Any, inputs: Any) -> Any:
        result, states, losses = model.stateless_call(
            *variables, inputs, training=False, return_losses=True
        )
        return flat(result, losses), states

    def call_by_jax(inputs: Any) -> list[Any]:
        states = model.non_trainable_variables
        both = model.trainable_variables, states
        variables = [[each.value for each in some] for some in both]
        found: list[Any]
        found, after = call_without_states(variables, inputs)
        for variable, value in zip(states, after, strict=True):
            variable.assign(value)
        return found

    return call_by_jax


@contextlib.contextmanager
def _kept(variables: list[Any]) -> Iterator[None]:
    """Gives variables their values back."""
    before = [_array(each) for each in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(
                keras.ops.convert_to_tensor(value, dtype=variable.dtype)
            )


@_tried
def _couples(model: Any, specs: Any) -> bool:
    call = _caller(model)
    half = _NUM_ROWS // 2

    def twice(rows: slice) -> Any:
        return keras.tree.map_structure(
            lambda x: (
                keras.ops.concatenate([x, x]) if hasattr(x, "shape") else x
            ),
            _made(specs, rows),
        )

    states = [
        each
        for each in (
            *model.non_trainable_variables,
            *model.metrics_variables,  # those of layers
        )
        if np.prod(each.shape) <= _LARGEST_STATE  # not frozen weights
    ]
    with _kept(states):
        given = _made(specs, _ALL)
        wholes, repeats = call(given), call(given)
        # As many rows: another shape is compiled once more.
        firsts, lasts = call(twice(_FIRST)), call(twice(_LAST))
    found = False
    for whole, again, first, last in zip(
        wholes, repeats, firsts, lasts, strict=True
    ):
        dtype = keras.backend.standardize_dtype(whole.dtype)
        one, other = _array(whole), _array(again)
        if not np.array_equal(one, other):
            return False  # it draws
        parts = [_array(first), _array(last)]
        if not one.ndim:
            found = found or _differs(one, np.mean(parts, axis=0), dtype)
        elif len(one) == _NUM_ROWS:
            joined = np.concatenate([part[:half] for part in parts])
            found = found or _differs(one, joined, dtype)
    return found
