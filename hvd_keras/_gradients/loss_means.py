"""Makes the means in a model's loss those of one process.

One process divides the sum of a batch's losses by a count: of rows, of entries
that a mask leaves, or of weights. A rank has the sum over its part of the
batch. It divides by the mean of the ranks' counts. So the mean of the ranks'
losses, and of their gradients, is that of one process:

  sum over ranks of (sum_r / mean count) / ranks = sum of all / count of all

Keras has divided by the rank's own count; the loss is scaled by the ratio of
the two.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras

from hvd_keras import _backends, basics
from hvd_keras._gradients.distributed_class import distributed_part
from hvd_keras._job import membership
from hvd_keras._keras import callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras import losses as keras_losses
from hvd_keras._keras import steps as keras_steps
from hvd_keras._keras.step_hook import trace_anew
from hvd_keras._values import agreement
from hvd_keras.data._counts import Counts, counts_of, source_of
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, Sum

# Attributes of a model, in `vars(model)`: what its functions were traced for.
_TRAINS_FOR = "_hvd_trains_for"
_TESTS_FOR = "_hvd_tests_for"


def install() -> None:
    """Hooks into Keras."""
    keras_losses.hook(_begin)
    keras_steps.patch_train_step()
    keras_epochs.at_data.add(_note_data)
    callback_lists.at_test_begin.add(_renew_test_function)


def mean_over_ranks(
    value: Any, name: str, process_set: ProcessSet, chain: list[Any]
) -> Any:
    """Returns the mean of a scalar over the ranks, as a float32 tensor.

    Calls with the same `chain`, a list that is empty at first, run one after
    the other.
    """
    value = keras.ops.cast(keras.ops.convert_to_tensor(value), "float32")
    value = keras.ops.stop_gradient(value)
    return _backends.current().mean_over_ranks(value, name, process_set, chain)


def rows_in_step() -> Any:
    """Returns 1.0 for each row of the running step, 0.0 for one that fills it.

    It is None outside of Keras's own training step, and if no row can fill it.
    """
    weights = keras_steps.running_weights()
    return None if weights is None else _is_row(weights)


class _Batch:
    """The part of a batch that this rank has, in one step.

    Args:
        own_rows: The rows that Keras sees.
        weights: Those of the rows, if some rows may only fill the batch.
        counts: What is known of the rows of all ranks.
        name: First part of the names of its collectives.
        process_set: The ranks that share the batch.
        sum_factor: Multiplies losses that are sums.
        asks: Whether the ranks may ask each other.
    """

    def __init__(
        self,
        own_rows: Any,
        weights: Any,
        *,
        counts: Counts | None,
        name: str,
        process_set: ProcessSet,
        sum_factor: float,
        asks: bool,
    ) -> None:
        self._own_rows = own_rows
        self._is_row = None if weights is None else _is_row(weights)
        self._counts = counts
        self._name = name
        self._process_set = process_set
        self._sum_factor = sum_factor
        self._asks = asks
        self._numbers = itertools.count()
        self._chain: list[Any] = []
        self._rows = self._count_rows()

    def scaled(
        self,
        loss: Any,
        *,
        sample_weight: Any,
        mask: Any,
        reduction: str,
        dtype: Any,
    ) -> Any:
        by_weights = (
            reduction == "mean_with_sample_weight" and sample_weight is not None
        )
        if reduction == "sum":
            factor: Any = self._sum_factor
        elif (mask is not None or by_weights) and self._asks:
            factor = self._ratio_of_counts(
                sample_weight, mask, reduction, dtype
            )
        elif self._rows is self._own_rows:
            return loss
        else:
            factor = _divided(self._own_rows, self._rows)
        return loss * keras.ops.cast(factor, loss.dtype)

    def num_rows(self, own: Any) -> Any:
        return own if self._rows is self._own_rows else self._rows

    def row_weights(self) -> Any:
        return self._is_row

    def _count_rows(self) -> Any:
        """Returns the rows that the batch counts for.

        It is the mean over the ranks if they may ask each other, else the
        number of this rank's rows that do not fill the batch.
        """
        rows = self._own_rows
        if self._is_row is not None:
            rows = keras.ops.sum(self._is_row)
        counts = self._counts
        if not self._asks:
            return rows
        if counts is None:
            return self._mean(rows)
        if counts.rest:
            rows = keras.ops.cast(rows, "float32")
            return keras.ops.where(
                keras.ops.equal(rows, float(counts.batch_size)),
                float(counts.batch_size),
                counts.rest / counts.num_ranks,
            )
        return rows

    def _ratio_of_counts(
        self, sample_weight: Any, mask: Any, reduction: str, dtype: Any
    ) -> Any:
        """Returns the count that Keras divided by, over the ranks' mean."""
        if reduction == "mean_with_sample_weight":
            weights = keras_losses.weights_of(
                sample_weight, mask, reduction, dtype
            )
            # Filling has the weight 0 here.
            own = real = keras.ops.sum(keras.ops.cast(weights, "float32"))
        else:
            valid = keras.ops.cast(mask, "float32")
            own = real = keras.ops.sum(valid)
            if self._is_row is not None:
                shape = [-1] + [1] * (len(valid.shape) - 1)
                is_row = keras.ops.reshape(self._is_row, shape)
                real = keras.ops.sum(valid * is_row)
        return _divided(own, self._mean(real))

    def _mean(self, value: Any) -> Any:
        if self._process_set.size() == 1:
            return value
        name = f"{self._name}/{next(self._numbers)}"
        return mean_over_ranks(value, name, self._process_set, self._chain)


def _is_row(weights: Any) -> Any:
    """Returns 1.0 for each row, 0.0 for one that fills the batch.

    The weight of filling is -0.0; that of a row may be 0.0.
    """
    first = (slice(None), *[0] * (len(weights.shape) - 1))
    column = weights[first]
    inverse = keras.ops.divide(1.0, keras.ops.cast(column, "float32"))
    return keras.ops.cast(
        keras.ops.not_equal(inverse, -float("inf")), "float32"
    )


def _divided(numerator: Any, denominator: Any) -> Any:
    return keras.ops.divide_no_nan(
        keras.ops.cast(numerator, "float32"),
        keras.ops.cast(denominator, "float32"),
    )


def _begin(
    model: Any, x: Any, y_pred: Any, sample_weight: Any, training: bool
) -> _Batch | None:
    """Begins a batch; None if its loss is this rank's own."""
    own_rows = _num_rows(x, y_pred)
    if own_rows is None:
        return None
    call = next(iter(keras_calls.running_calls()), None)
    fills = call is None or call.may_fill
    weights = [w for w in keras.tree.flatten(sample_weight) if w is not None]
    arguments = {
        "own_rows": own_rows,
        "weights": weights[0] if weights and fills else None,
    }
    begin = _begin_training if training else _begin_test
    return begin(model, call, y_pred, sample_weight, arguments)


def _begin_training(
    model: Any,
    call: Any,
    y_pred: Any,
    sample_weight: Any,
    arguments: dict[str, Any],
) -> _Batch | None:
    part = distributed_part(getattr(model, "optimizer", None))
    if part is None:
        return None
    options = part.hvd_settings.reduce
    process_set = options.process_set
    if (
        options.op not in (Average, Sum)
        or not process_set.included()
        or _is_alone(process_set, call)
    ):
        return None
    sum_factor = float(process_set.size() or 1)
    if models.has_our_strategy(model) or (
        options.op == Sum and not _is_sum(model)
    ):
        sum_factor = 1.0
    elif options.op == Sum:
        # The loss has the size that is reported; the sum of the ranks'
        # gradients has that of one process.
        part.hvd_scale_next(1.0 / sum_factor)
    counts = None
    if call is not None and call.method == "fit":
        counts = call.counts
    number = part.hvd_next_loss()
    return _Batch(
        **arguments,
        counts=counts,
        name=f"{part.hvd_reducer.name()}/loss_{number}",
        process_set=process_set,
        sum_factor=sum_factor,
        asks=True,
    )


def _begin_test(
    model: Any,
    call: Any,
    y_pred: Any,
    sample_weight: Any,
    arguments: dict[str, Any],
) -> _Batch | None:
    is_global = (
        call is not None
        and call.sums_metrics
        and not _is_alone(global_process_set, call)
    )
    # A mean over rows adds up without a word between the ranks.
    asks = is_global and (
        keras_losses.has_mask(y_pred)
        or any(
            reduction == "sum"
            or (
                reduction == "mean_with_sample_weight"
                and sample_weight is not None
            )
            for reduction in keras_losses.reductions_of(model)
        )
    )
    counts = call.counts if is_global else None
    if asks or counts or arguments["weights"] is not None:
        vars(model)[_TESTS_FOR] = _key_of_test(call)
    if not is_global:
        return None
    return _Batch(
        **arguments,
        counts=counts,
        name=f"evaluate{membership.name_suffix()}",
        process_set=global_process_set,
        sum_factor=1.0
        if models.has_our_strategy(model)
        else float(basics.size()),
        asks=asks or counts is not None,
    )


def _is_alone(process_set: ProcessSet, call: Any) -> bool:
    """Whether Keras's own means are right: one rank, nothing to leave out."""
    return process_set.size() == 1 and not (call and call.may_fill)


def _is_sum(model: Any) -> bool:
    """Whether all losses of a model are sums over the batch."""
    reductions = keras_losses.reductions_of(model)
    return bool(reductions) and set(reductions) == {"sum"}


def _num_rows(*structures: Any) -> Any:
    """Returns the rows of the first tensor; None if there is none."""
    for tensor in keras.tree.flatten(structures):
        if tensor is not None and len(tensor.shape):
            return keras.ops.shape(tensor)[0]
    return None


# ---- What a call knows of its data ----


def _note_data(call: Any) -> None:
    """Notes what all ranks know of the batches of `fit` or `evaluate`."""
    source = source_of(call.data)
    call.may_fill = call.adds_weights = False
    if source is not None and source.may_fill:
        call.may_fill, call.adds_weights = True, source.adds_weights
    call.sums_metrics = call.sums_metrics or models.has_our_strategy(call.model)
    if call.method != "fit":
        return
    part = distributed_part(getattr(call.model, "optimizer", None))
    if part is None:
        return
    process_set = part.hvd_settings.reduce.process_set
    if not process_set.included() or process_set.size() == 1:
        return
    call.counts = _agreed_counts(call, process_set)
    traced_for = vars(call.model).get(_TRAINS_FOR)
    if traced_for != (call.counts, call.may_fill):
        call.model.train_function = None
        vars(call.model)[_TRAINS_FOR] = (call.counts, call.may_fill)


def forget_counts(fit: Any, rest: int | None) -> None:
    """Lets the ranks of a `fit` ask each other for the rows of each step.

    Args:
        fit: The running call.
        rest: Rows of the last step of its first epoch, or 0 if that is full.
            Nothing changes if all ranks know it.
    """
    if fit.counts is None or fit.counts.rest == rest:
        return
    fit.counts = None
    vars(fit.model)[_TRAINS_FOR] = (None, fit.may_fill)
    trace_anew(fit.model)


def _agreed_counts(call: Any, process_set: ProcessSet) -> Counts | None:
    """Returns what all ranks know of the rows of a `fit`; they compare it."""
    counts = counts_of(call.data)
    if counts is None and not call.may_fill:
        sizes = keras_epochs.batch_sizes_of(call)
        num_ranks = process_set.size() or 1
        # A strategy cuts the batches into parts for the ranks.
        is_cut = models.has_our_strategy(call.model)
        if sizes is not None and not (
            is_cut and any(size % num_ranks for size in sizes[1:])
        ):
            batch_size = sizes[1] // num_ranks if is_cut else sizes[1]
            counts = Counts(num_ranks, batch_size, rest=0)
    own = None
    if counts is not None and counts.are_known():
        own = [counts.num_ranks, counts.batch_size, counts.rest]
        own += keras_epochs.batch_sizes_of(call) or []
    values = agreement.disagreement("fit/batches", own, process_set=process_set)
    return counts if own is not None and values is None else None


def _key_of_test(call: Any) -> tuple[bool, bool, Counts | None]:
    if call is None:
        return False, True, None
    return call.sums_metrics, call.may_fill, call.counts


def _renew_test_function(call: Any) -> None:
    """Drops a test function that was traced for another kind of call."""
    # Of several losses, Keras takes the mean over the batches, without weights
    # if their shapes do not say how many rows they have.
    if (
        call.sums_metrics
        and len(keras_losses.reductions_of(call.model)) > 1
        and not _is_alone(global_process_set, call)
    ):
        call.counts = _agreed_counts(call, global_process_set)
    traced_for = vars(call.model).get(_TESTS_FOR)
    if traced_for is not None and traced_for != _key_of_test(call):
        del vars(call.model)[_TESTS_FOR]
        call.model.test_function = None
        call.model.make_test_function()
