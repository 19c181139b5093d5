"""Hooks into the places where Keras takes the mean of a loss.

The private names of Keras in this table are used only here. They are checked
when this module is imported.

| Name | Used to |
|---|---|
| `losses.loss.apply_mask` | compute the weights of a loss as Keras does |
| `CompileMetrics._flat_metrics`, `_flat_weighted_metrics` | leave rows out |
| `Trainer._loss_tracker`, `_compile_metrics` | know the metrics of a batch |
| `Trainer._compile_loss` | know the losses of a model |
| `CompileLoss._user_loss`, `_user_loss_weights` | know a model's losses |
| `get_keras_mask` | know if a mask will weigh a loss |
| `in_symbolic_scope` | know that there are shapes and no values |
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras.calls import running_calls
from hvd_keras._keras.filled_metrics import spread, without_filling
from hvd_keras._keras.lookup import owner_of, private_module, require
from hvd_keras._keras.steps import running_step

_loss: Any = private_module("losses.loss")
_compile_utils: Any = private_module("trainers.compile_utils")
_masking: Any = private_module("backend.common.masking")
_ADDED = "_aggregate_additional_loss"
_symbolic_scope: Any = private_module("backend.common.symbolic_scope")


class Batch(Protocol):
    """What the hooks ask about the batch of a training or test step."""

    # Whether rows among others may only fill it.
    is_partial: bool
    # Whether tensors can have as many rows as values say.
    can_cut: bool
    # Set when such rows were left out.
    leaves_out: bool
    # Parts of the loss that are those of all ranks.
    known: list[Any]
    # The weights that mark them, if the step's own lack these.
    marks: Any

    def total(self, loss: Any) -> Any:
        """Returns the loss to differentiate, of the loss of the whole batch.

        Args:
            loss: What `compute_loss` has returned.
        """

    def scaled(
        self,
        loss: Any,
        *,
        values: Any,
        sample_weight: Any,
        mask: Any,
        reduction: str,
        dtype: Any,
        is_of_rows: bool,
    ) -> Any:
        """Returns a reduced loss, scaled.

        Args:
            loss: The scalar that Keras computes.
            values: What it computes it of.
            sample_weight: A tensor or None.
            mask: A tensor or None.
            reduction: That of the loss.
            dtype: That of the loss.
            is_of_rows: Whether the first dimension of `values` are the rows.
        """

    def weight_of_mean(self, sample_weight: Any) -> Any:
        """Returns the mean weight of all ranks' rows; or what it got.

        A loss that is one value for the batch has no other use for weights.
        """

    def summed(self, loss: Any) -> Any:
        """Returns a sum over rows, scaled."""

    def tracked(self, loss: Any, num_rows: Any) -> tuple[Any, Any]:
        """Returns the loss to report, and its weight.

        Args:
            loss: What `total` has returned.
            num_rows: The weight that Keras gives it.
        """

    def weighed(self, weight: Any, *, is_of_output: bool) -> Any:
        """Returns the weight of a mean over this rank's rows.

        Args:
            weight: What Keras or the user gives it; None: as any other.
            is_of_output: Whether Keras gives the rows of one output.
        """

    def has_rows_of(self, structure: Any) -> bool:
        """Whether all tensors of a batch's part have its rows."""

    def row_weights(self) -> Any:
        """Returns 0 for rows that fill the batch, else 1; None if none can."""

    def tell_of_filling(self, metric: Any) -> None:
        """Tells the user that a metric counts rows that fill the batch."""


# Begins a batch; gets model, x, y, y_pred, sample_weight, training.
Begin = Callable[[Any, Any, Any, Any, Any, bool], Batch | None]


class _Loss:
    """The loss of a batch that is being computed."""

    def __init__(self, batch: Batch | None) -> None:
        self.batch = batch
        self.is_of_rows = False


# The loss that is being computed.
_computing: contextvars.ContextVar[_Loss | None] = contextvars.ContextVar(
    "_computing", default=None
)
# The attribute of a metric that holds the batch of its next update.
_BATCH = "_hvd_batch"


def hook(begin: Begin) -> None:
    """Makes Keras ask `begin` about each batch."""
    replace(
        owner_of("_compute_loss"),
        "_compute_loss",
        functools.partial(_totalling, begin),
    )
    replace(
        owner_of("compute_loss"),
        "compute_loss",
        functools.partial(_asking, begin),
    )
    replace(owner_of(_ADDED), _ADDED, _adding)
    replace(_loss, "reduce_weighted_values", _scaling)
    replace(keras.metrics.Mean, "update_state", _weighing)
    replace(_compile_utils.CompileMetrics, "update_state", _leaving_out)


def _computed(loss: _Loss, compute: Callable[[], Any]) -> Any:
    before = _computing.set(loss)
    try:
        return compute()
    finally:
        _computing.reset(before)


def _totalling(
    begin: Begin, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Wraps what Keras's own steps call, whoever has written the loss."""
    signature = inspect.signature(original)

    def compute_loss(*args: Any, **kw: Any) -> Any:
        if _symbolic_scope.in_symbolic_scope():
            return original(*args, **kw)
        batch = _begun(begin, signature, args, kw)
        if batch is None:
            return original(*args, **kw)
        loss = _computed(_Loss(batch), lambda: original(*args, **kw))
        model = args[0]
        if model._loss_tracker is not None:  # Keras tracks `__setattr__`
            vars(model._loss_tracker)[_BATCH] = batch
        return batch.total(loss)

    return compute_loss


def _asking(begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras's own loss, which the user's may call."""
    signature = inspect.signature(original)

    def compute_loss(*args: Any, **kw: Any) -> Any:
        if _symbolic_scope.in_symbolic_scope():
            return original(*args, **kw)
        given = signature.bind(*args, **kw)
        given.apply_defaults()
        of = given.arguments
        model, step = of["self"], running_step()
        running = _computing.get()
        batch = _batch_of_step() if running is None else running.batch
        is_alone = running is None and batch is None
        if is_alone:
            batch = _begun(begin, signature, args, kw)
        loss = _Loss(batch)
        if batch is None:
            return _computed(loss, lambda: original(*args, **kw))
        if batch.is_partial and of["sample_weight"] is None:
            of["sample_weight"] = batch.marks
        batch.leaves_out = batch.leaves_out or of["sample_weight"] is not None
        if model._compile_metrics is not None:
            vars(model._compile_metrics)[_BATCH] = batch
        loss.is_of_rows = _takes_rows(model) and (
            step is None or (of["y"] is step.y and batch.has_rows_of(of["y"]))
        )
        value = _computed(loss, lambda: original(*given.args, **given.kwargs))
        return batch.total(value) if is_alone else value

    # Keras looks at the parameters of this method.
    return compute_loss


def _begun(
    begin: Begin, signature: inspect.Signature, args: Any, kw: Any
) -> Batch | None:
    """Returns the batch of a loss: that of the step, else one of its own."""
    given = signature.bind(*args, **kw)
    given.apply_defaults()
    of = given.arguments
    step = running_step()
    training = of.get("training", True)
    if step is not None and step.training == training:
        batch: Batch | None = step.batch
        return batch
    return begin(
        of["self"],
        of["x"],
        of["y"],
        of["y_pred"],
        of["sample_weight"],
        training,
    )


def _batch_of_step() -> Batch | None:
    step = running_step()
    return None if step is None else step.batch


def _takes_rows(model: Any) -> bool:
    """Whether each loss of a model is Keras's, which has a value a row."""
    return all(
        isinstance(loss, str)
        or (
            getattr(loss, "__module__", "").startswith("keras.")
            # It may hold a function of the user's.
            and type(loss).__name__ != "LossFunctionWrapper"
        )
        for loss in losses_of(model)
    )


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    def aggregate_additional_loss(self: Any, loss: Any) -> Any:
        running = _computing.get()
        value = original(self, loss)
        if running is None or running.batch is None or not len(loss.shape):
            return value
        value = running.batch.summed(value)
        running.batch.known.append(value)
        return value

    return aggregate_additional_loss


def _scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        running = _computing.get()
        batch = _batch_of_step() if running is None else running.batch
        if batch is not None and batch.is_partial:
            _check_has_rows(values)
        if batch is not None and not len(values.shape) and reduction != "sum":
            # Of one value, Keras's mean by weights is the value.
            is_mean = reduction == "mean_with_sample_weight"
            sample_weight = (
                None if is_mean else batch.weight_of_mean(sample_weight)
            )
        elif any(call.rows.adds_weights for call in running_calls()[:1]):
            sample_weight = spread(sample_weight, values)
        loss = original(values, sample_weight, mask, reduction, dtype)
        if batch is None or reduction in (None, "none"):
            return loss
        scaled = batch.scaled(
            loss,
            values=values,
            sample_weight=sample_weight,
            mask=mask,
            reduction=reduction,
            dtype=dtype or loss.dtype,
            is_of_rows=running is not None and running.is_of_rows,
        )
        if len(values.shape):
            batch.known.append(scaled)
        return scaled

    return reduce_weighted_values


def _weighing(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        running = _computing.get()
        if running is not None and _in_graph_of_tensorflow():
            # Keras weighs the loss of an output by the rows of a batch, if
            # shapes tell them. There, they tell those of all batches, or none;
            # a share may tell those of some.
            sample_weight = None
        batch = vars(self).pop(_BATCH, None)
        if batch is not None and running is None:
            values, sample_weight = batch.tracked(values, sample_weight)
        else:
            batch = _batch_of_step() if running is None else running.batch
            if batch is not None and len(keras.ops.shape(values)) == 0:
                sample_weight = batch.weighed(
                    sample_weight, is_of_output=running is not None
                )
        return original(self, values, sample_weight)

    return update_state


def _in_graph_of_tensorflow() -> bool:
    tf = sys.modules.get("tensorflow")
    return keras.backend.backend() == "tensorflow" and not (
        tf is None or tf.executing_eagerly()
    )


def _leaving_out(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        batch = vars(self).pop(_BATCH, None) or _batch_of_step()
        if batch is None or not batch.is_partial:
            return original(self, y_true, y_pred, sample_weight)
        if not self.built:
            self.build(y_true, y_pred)
        lists = self._flat_metrics + self._flat_weighted_metrics
        metrics = [one for each in lists if each for one in each.metrics]
        with without_filling(metrics, batch):
            return original(self, y_true, y_pred, sample_weight)

    return update_state


def _check_has_rows(values: Any) -> None:
    """Raises ValueError if rows that fill a batch cannot be left out."""
    if len(values.shape) == 0:
        raise ValueError(
            "The loss must return a value for each row: some rows of these "
            "data from `hvd.shard` only fill a batch, and do not count. "
            "Received: a loss that returns one value for the whole batch. "
            "Return a value a row, or take another `policy` in `hvd.shard`: "
            '"split" fills no batch in part, "drop" drops the rest.'
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
        _masking.get_keras_mask(output) is not None
        for output in keras.tree.flatten(outputs)
        if output is not None
    )


def reductions_of(model: Any) -> list[str]:
    """Returns the reductions of the losses that a model was compiled with."""
    return [
        getattr(loss, "reduction", "sum_over_batch_size")
        for loss in losses_of(model)
    ]


def losses_of_whole_batches(model: Any) -> list[str]:
    """Returns the names of Keras's losses that are no means over rows."""
    kinds: Any = keras.losses.Dice, keras.losses.Tversky
    return [
        f"{loss.name}(axis=None)"
        for loss in map(_as_object, losses_of(model))
        if isinstance(loss, kinds) and getattr(loss, "axis", None) is None
    ]


def _as_object(loss: Any) -> Any:
    functions = {
        keras.losses.dice: keras.losses.Dice,
        keras.losses.tversky: keras.losses.Tversky,
    }
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    kind = functions.get(loss) if callable(loss) else None
    return loss if kind is None else kind()


def losses_of(model: Any) -> list[Any]:
    """Returns the losses that a model was compiled with, as they were given."""
    compiled = model._compile_loss
    if compiled is None:
        return []
    losses = keras.tree.flatten(require(compiled, "_user_loss"))
    return [loss for loss in losses if loss is not None]


def loss_weights_of(model: Any) -> Any:
    """Returns the weights of a model's losses, as they were given."""
    compiled = model._compile_loss
    return compiled and compiled._user_loss_weights


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
    require(_masking, "get_keras_mask")
    require(_symbolic_scope, "in_symbolic_scope")


check_names()
