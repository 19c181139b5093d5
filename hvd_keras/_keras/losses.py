"""Hooks into the places where Keras takes the mean of a loss.

The private names of Keras in this table are used only here. They are checked
when this module is imported.

| Name | Used to |
|---|---|
| `losses.loss.apply_mask` | compute the weights of a loss as Keras does |
| `CompileMetrics._flat_metrics`, `_flat_weighted_metrics` | leave rows out |
| `CompileMetrics._flatten_y` | the same |
| `Trainer._loss_tracker`, `_compile_metrics` | know the metrics of a batch |
| `Trainer._compile_loss` | know the losses of a model |
| `CompileLoss._user_loss` | know the reductions of a model's losses |
| `get_keras_mask` | know if a mask will weigh a loss |
| `in_symbolic_scope` | know that there are shapes and no values |
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.lookup import owner_of, private_module, require

_loss: Any = private_module("losses.loss")
_compile_utils: Any = private_module("trainers.compile_utils")
_backend: Any = private_module("backend")
_symbolic_scope: Any = private_module("backend.common.symbolic_scope")


class Batch(Protocol):
    """What the hooks ask about the batch of a training or test step."""

    def scaled(
        self,
        loss: Any,
        *,
        sample_weight: Any,
        mask: Any,
        reduction: str,
        dtype: Any,
    ) -> Any:
        """Returns a reduced loss, scaled.

        Args:
            loss: The scalar that Keras computes.
            sample_weight: A tensor or None.
            mask: A tensor or None.
            reduction: That of the loss.
            dtype: That of the loss.
        """

    def num_rows(self, own: Any) -> Any:
        """Returns how many rows the batch counts for in the tracked loss.

        Args:
            own: The number for this rank's batch.
        """

    def row_weights(self) -> Any:
        """Returns 0 for rows that fill the batch, else 1; None if none can."""


# Begins a batch; gets model, x, y_pred, sample_weight, training.
Begin = Callable[[Any, Any, Any, Any, bool], Batch | None]

# The batch whose loss is being computed.
_computing: contextvars.ContextVar[Batch | None] = contextvars.ContextVar(
    "_computing", default=None
)
# The attribute of a metric that holds the batch of its next update.
_BATCH = "_hvd_batch"


def hook(begin: Begin) -> None:
    """Makes Keras ask `begin` about each batch."""
    asking = functools.partial(_asking, begin)
    replace(owner_of("compute_loss"), "compute_loss", asking)
    replace(_loss, "reduce_weighted_values", _scaling)
    replace(keras.metrics.Mean, "update_state", _weighing)
    replace(_compile_utils.CompileMetrics, "update_state", _leaving_out)


def _asking(begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def compute_loss(*args: Any, **kw: Any) -> Any:
        if _symbolic_scope.in_symbolic_scope():
            return original(*args, **kw)
        given = signature.bind(*args, **kw)
        given.apply_defaults()
        of = given.arguments
        batch = begin(
            of["self"],
            of["x"],
            of["y_pred"],
            of["sample_weight"],
            of.get("training", True),
        )
        for metric in (of["self"]._loss_tracker, of["self"]._compile_metrics):
            if metric is not None:  # Keras tracks what `__setattr__` sets
                vars(metric)[_BATCH] = batch
        before = _computing.set(batch)
        try:
            return original(*args, **kw)
        finally:
            _computing.reset(before)

    # Keras looks at the parameters of this method.
    return compute_loss


def _scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        _check_has_rows(values)
        if _weights_mark_filling():
            sample_weight = _spread(sample_weight, values)
        loss = original(values, sample_weight, mask, reduction, dtype)
        batch = _computing.get()
        if batch is None or reduction in (None, "none"):
            return loss
        return batch.scaled(
            loss,
            sample_weight=sample_weight,
            mask=mask,
            reduction=reduction,
            dtype=dtype or loss.dtype,
        )

    return reduce_weighted_values


def _weighing(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        batch = _computing.get() or vars(self).pop(_BATCH, None)
        if batch is not None and sample_weight is not None:
            sample_weight = batch.num_rows(sample_weight)
        return original(self, values, sample_weight)

    return update_state


def _leaving_out(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        batch = vars(self).pop(_BATCH, None)
        weights = None if batch is None else batch.row_weights()
        if weights is None and _weights_mark_filling():
            weights = sample_weight
        if weights is None:
            return original(self, y_true, y_pred, sample_weight)
        if not self.built:
            self.build(y_true, y_pred)
        # Keras gives the weights of a batch to the weighted metrics alone.
        kinds = {"_flat_metrics": self._flat_metrics}
        if _weights_mark_filling():
            kinds["_flat_weighted_metrics"] = self._flat_weighted_metrics
        for kind, metrics in kinds.items():
            vars(self)[kind] = [None for _ in metrics]
        try:
            original(self, y_true, y_pred, sample_weight)
        finally:
            vars(self).update(kinds)
        outputs = self._flatten_y(y_pred)
        for metrics in kinds.values():
            each = zip(metrics, self._flatten_y(y_true), outputs, strict=False)
            for metric, y_t, y_p in each:
                if metric:
                    mask = _backend.get_keras_mask(y_p)
                    of_rows = _spread(weights, mask)
                    metric.update_state(y_t, y_p, sample_weight=of_rows)
        return None

    return update_state


def _weights_mark_filling() -> bool:
    """Whether weights were added to the data to mark what fills a batch."""
    return any(call.adds_weights for call in keras_calls.running_calls()[:1])


def _check_has_rows(values: Any) -> None:
    """Raises ValueError if rows that fill a batch cannot be left out."""
    calls = keras_calls.running_calls()[:1]
    if len(values.shape) == 0 and any(call.may_fill for call in calls):
        raise ValueError(
            "The loss must return a value for each row: some rows of these "
            "data from `hvd.shard` only fill a batch, and do not count. "
            "Received: a loss that returns one value for the whole batch. "
            'Return a value a row, or drop the rest with `policy="drop"`.'
        )


def _spread(weights: Any, like: Any) -> Any:
    """Returns the weights of rows, as a tensor of the shape of `like`."""
    if weights is None or like is None or len(like.shape) <= 1:
        return weights
    shape = [-1] + [1] * (len(like.shape) - 1)
    weights = keras.ops.reshape(weights, shape)
    return keras.ops.where(
        keras.ops.ones_like(like, dtype="bool"), weights, weights
    )


def weights_of(
    sample_weight: Any, mask: Any, reduction: str, dtype: Any
) -> Any:
    """Returns the weights that Keras computes of weights and a mask."""
    if sample_weight is not None:
        # On torch, Keras would multiply in place.
        sample_weight = keras.ops.copy(
            keras.ops.convert_to_tensor(sample_weight, dtype=dtype)
        )
    if mask is not None:
        mask = keras.ops.convert_to_tensor(mask, dtype=dtype)
    return _loss.apply_mask(
        sample_weight, mask, dtype=dtype, reduction=reduction
    )


def has_mask(outputs: Any) -> bool:
    """Whether a mask of Keras belongs to one of a model's outputs."""
    return any(
        _backend.get_keras_mask(output) is not None
        for output in keras.tree.flatten(outputs)
        if output is not None
    )


def reductions_of(model: Any) -> list[str]:
    """Returns the reductions of the losses that a model was compiled with."""
    compiled = model._compile_loss
    if compiled is None:
        return []
    return [
        getattr(loss, "reduction", "sum_over_batch_size")
        for loss in keras.tree.flatten(require(compiled, "_user_loss"))
        if loss is not None
    ]


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        _loss,
        "reduce_weighted_values",
        ["values", "sample_weight", "mask", "reduction", "dtype"],
    )
    require(
        _loss, "apply_mask", ["sample_weight", "mask", "dtype", "reduction"]
    )
    require(
        keras.metrics.Mean, "update_state", ["self", "values", "sample_weight"]
    )
    require(
        _compile_utils.CompileMetrics,
        "update_state",
        ["self", "y_true", "y_pred", "sample_weight"],
    )
    require(_compile_utils.CompileMetrics, "_flatten_y", ["self", "y"])
    require(_backend, "get_keras_mask")
    require(_symbolic_scope, "in_symbolic_scope")


check_names()
