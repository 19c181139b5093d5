"""Tells users, once a model, what their script seems to have forgotten."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common import log, remarks, training_signs, user_code
from hvd_keras._keras import models
from hvd_keras._keras.hooks import Hooks
from hvd_keras._keras.optimizer import OptimizerHooks

# Called with a warning that N ranks train on another loss than one process.
at_other_loss: Hooks[Callable[[str], None]] = Hooks()

_told_rows: set[str] = set()
_told: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

_PLAIN = (
    "Each rank trains its own model: wrap the optimizer in "
    "`hvd.DistributedOptimizer` before `compile`. Received: %s."
)
_APART = (
    "The ranks train apart: after the first step they have different weights. "
    "Use `hvd.DistributedOptimizer` or `hvd.DistributedGradientTape` in "
    "`train_step`. Received: %s."
)
_UNKNOWN_MEAN = (
    "Ranks may have unequal numbers of rows in some steps. The loss of %s is "
    "taken for a mean over the rows of a rank, and weighted by their number. "
    "If it is another mean, or a sum, compute it by `hvd.global_mean`."
)
_SUM_OF_ROWS = (
    "A loss adds up the rows of a rank, so N ranks train with 1/N of what one "
    "process has. Give Keras a value a row: `add_loss` takes it, and so does a "
    '`keras.losses.Loss` with `reduction="sum"`; they are added up over all '
    "ranks. Elsewhere take `hvd.global_mean` times the rows of a global batch. "
    "Received: %s."
)
_RATIO_OF_ROWS = (
    "A loss divides by a number that depends on the rows of a batch, such as "
    "the sum of a mask. Each rank divides by that of its own rows, so N ranks "
    "train on another loss than one process. Give Keras a value a row, or let "
    "`hvd.global_mean(values, mask=mask)` divide by that of all ranks. "
    "Received: %s."
)
_CHANGED_GRADIENTS = (
    "A step changes its gradients before the optimizer gets them. These are of "
    "the rank's rows: clipped or scaled by their own norm, their mean is not "
    "what one process has. Let the optimizer do it, by `clipnorm`, "
    "`global_clipnorm` or an `apply` of its own, which get the gradients of "
    "all ranks. Received: %s."
)
_UNEQUAL_ROWS = (
    "A loop outside of `fit` trains on data from `hvd.shard`, and the ranks "
    "have unequal numbers of rows in some batches. A mean over a rank's rows "
    "counts as much as that of a rank with more rows, so the gradient is not "
    "that of one process: compute the loss by `hvd.global_mean`, or pass "
    '`policy="drop"` to `hvd.shard`. Received: %s.'
)
_SAME_DATA = (
    "All ranks train on the same rows. If each was given all the data, "
    "share them out: `fit(hvd.shard((x, y), global_batch_size=...))`, with the "
    "batch size of one process; a dataset or DataLoader of batches by "
    "`hvd.shard(data, batched=True)`; a PyDataset by `hvd.shard(data)`; a "
    "generator as docs/loaders.md#generators says. If each draws or picks its "
    "own rows, their random seeds are equal: add `hvd.rank()` to the seed, for "
    "example `np.random.default_rng(1 + hvd.rank())`. Received: %s."
)
CURE_OF_RATES = "A rate that the program sets must not depend on the rank."
_RATES = (
    f"The ranks begin with different learning rates. {CURE_OF_RATES} The "
    "broadcast of the first values gives all of them that of its root, rank 0 "
    "by default; without it their weights drift apart. Received: %s."
)
_FILLED = (
    'Some rows of `hvd.shard(..., policy="pad")` only fill batches, and a '
    "metric counts them: multiply by `sample_weight` in its `update_state`, "
    "return one value a row from a metric function, or pass "
    '`policy="split"`. Received: the metric %s.'
)
_UNKNOWN_STATES = (
    "The ranks had different values of states of layers, and nobody has said "
    "what these are: they now have the mean, or that of rank 0 for integers. "
    'Say so with `hvd.set_aggregation(layer, "mean")`, "sum" of what the ranks '
    'have added, "only_first_replica" or "own", or with `aggregation=` of '
    "`add_weight`. If steps depend on them, reduce them in the layer with "
    "`hvd.allreduce`. Received: %s."
)
_UNTRACKED = (
    "The ranks have different values in variables or arrays that Keras does "
    "not track, so these are neither broadcast nor averaged nor saved, and "
    "ranks may predict differently. Make them with `add_weight`, as a "
    "`keras.Variable` of the layer, or by random numbers with a seed; or say "
    "that they shall differ: "
    '`hvd.set_aggregation(layer, "own")`. Received: %s.'
)
_METRICS = (
    "Metrics are reported as means over the ranks, weighted by rows, where "
    "they cannot be computed of the rows of all ranks. Return one value a row "
    "from a metric function; keep the state of a `keras.metrics.Metric` in "
    "variables of `add_variable` that add up. Received: %s."
)
_COUNTED_STEPS = (
    "A metric counts steps. Each rank counts its own, and metrics add up over "
    "the ranks: N ranks report N times what one process does. Give its "
    'variable `aggregation="none"` in `add_variable`; it is averaged then. '
    "Received: %s."
)
_OWN_METRICS = (
    "`evaluate` has returned the metrics of each rank's own rows. For those of "
    "all rows, on all ranks: "
    "`evaluate(data, callbacks=[hvd.callbacks.MetricAverageCallback()])`. "
    "Received: %s."
)
_OWN_LOGS = (
    "The metrics of `fit` and of its validation are those of each rank's own "
    "rows, also where callbacks decide by them. For those of all rows: "
    "`fit(..., callbacks=[hvd.callbacks.MetricAverageCallback()])`. "
    "Received: %s."
)
_OWN_STATISTICS = (
    "%s normalizes by the statistics of each rank's own rows, so the training "
    "is near that of one process, not equal to it. For those of all rows: "
    "`model = hvd.convert_sync_batch_normalization(model)` before `compile`."
)
_OWN_STOP = (
    "`EarlyStopping` has ended the training of all ranks because of metrics of "
    "some ranks' own rows: add `hvd.callbacks.MetricAverageCallback()`, which "
    "takes those of all rows. Received: %s alone,"
)
_ADAPTED = (
    "Ranks have called `adapt` of a preprocessing layer with other data, and "
    "now have what rank 0 has learnt, by default. Call it with all data, on "
    "all ranks. Received: %s."
)
_GLOBAL_MEAN = (
    "A loss is divided by the rows of all ranks, and gradients are divided by "
    "the number of ranks again. Divide by this rank's rows, as "
    "`tf.reduce_mean` does; or sum the gradients, by `op=hvd.Sum`. Received: "
    "%s, with `global_batch_size`."
)
_OWN_PREDICTIONS = (
    "`predict` has returned the predictions for each rank's own rows. For "
    "those of all rows, in order: `hvd.predict(model, data)`. Received: %s."
)
_MIXED_ROWS = (
    "A step multiplies the rows of a batch by each other, or compares the rows "
    "of a batch in pairs, as contrastive losses, distances and `tensordot` "
    "over the batch do: each rank has its own rows alone, and N ranks train on "
    "another loss than one process. Gather the others' rows first, by "
    '`hvd.allgather` ("A contrastive loss over all ranks" in '
    "docs/collectives.md). Received: %s."
)
_WHOLE_BATCH = (
    "A loss is one number of all rows of a batch and no mean over them: each "
    "rank has that of its own rows, and N ranks train on another loss than one "
    "process. Return one value a row, or give it the other axes, such as "
    "`axis=(1, 2, 3)`: it is a mean over rows then. Received: %s."
)
_COUPLED_ROWS = (
    "What a model makes of a row depends on the other rows of its batch, in a "
    "layer, a function or a loss that the script adds. Each rank has its own "
    "rows, so N ranks train another model than one process. Statistics of the "
    "whole batch are those of `keras.layers.BatchNormalization`; for others "
    "gather the rows first, by `hvd.allgather`, or train on one rank. "
    "Received: %s."
)
_MIXING_STEP = (
    "A step was tried once, on a few rows of small numbers: its gradients of "
    "parts of a batch have another mean than those of the whole batch. Each "
    "rank has its own rows, so N ranks train on another loss than one process. "
    "Make each loss a mean over rows of what comes from one row alone "
    "(`keras.ops.mean(loss_of_rows)`), without roots, norms or quotients of "
    "the whole batch. Received: %s."
)
_NO_MEANS = (
    "Values that `train_step` returns are no means over rows, such as a norm "
    "or a maximum: each rank has those of its own rows, and the logs hold "
    "their mean over the ranks, not the value of one process. Received: %s."
)
_OF_TORCH = (
    "A module of torch normalizes by the rows of each rank alone, so N ranks "
    "train another model than one process; a rank with one row fails. Take "
    "`keras.layers.BatchNormalization`, which takes the whole batch here, or "
    "`hvd_keras.torch.SyncBatchNorm`. Received: %s."
)
_NO_SUMS = (
    "A metric's state is no sum over rows, such as a maximum, the value of the "
    "last batch or a mean of batches. Each rank has that of its own rows; what "
    "is reported is their mean over the ranks, not the value of one process. "
    "Keep sums over rows in variables of `add_variable`. Received: %s."
)
_JOINED = (
    "Fewer rows than ranks are left at the end, and batches without targets "
    "cannot mark copies: these rows go to the step before, and an epoch has "
    "one step less than on one process. Give targets, `(x, x)` for example, or "
    '`policy="drop"`. Received: %s.'
)


def tell_of_unknown_mean(model: Any, method: str) -> None:
    """Says what a loss is taken for that is no loss of Keras."""
    _tell(model, _UNKNOWN_MEAN, method)


def tell_of_sum_of_rows(model: Any, method: str) -> None:
    """Warns of a loss that is a sum over this rank's rows."""
    _tell(model, _SUM_OF_ROWS, method)


def tell_of_ratio_of_rows(model: Any, method: str) -> None:
    """Warns of a loss that is another mean of rows than that of all."""
    if _WHOLE_BATCH not in _told.get(model, set()):  # by a trial
        _tell(model, _RATIO_OF_ROWS, method, is_other_loss=True)


def tell_of_changed_gradients(model: Any, method: str) -> None:
    """Warns of a step that clips the gradients of a rank."""
    _tell(model, _CHANGED_GRADIENTS, method)


def tell_of_mixed_rows(model: Any, received: str) -> None:
    """Warns of a loss that depends on several rows at once."""
    _tell(model, _MIXED_ROWS, received, is_other_loss=True)


def tell_of_losses_of_whole_batches(model: Any, names: list[str]) -> None:
    """Warns of losses that are no means over rows."""
    _tell(model, _WHOLE_BATCH, ", ".join(names), is_other_loss=True)


def tell_of_coupled_rows(model: Any, received: str) -> None:
    """Warns of a model that takes no row by itself, unless it is known how."""
    if _MIXED_ROWS not in _told.get(model, set()):
        _tell(model, _COUPLED_ROWS, received, is_other_loss=True)


def tell_of_step_that_mixes_rows(model: Any, method: str) -> None:
    """Warns of a step that was tried, unless its reason is known."""
    reasons = {
        _SUM_OF_ROWS,
        _RATIO_OF_ROWS,
        _CHANGED_GRADIENTS,
        _MIXED_ROWS,
        _WHOLE_BATCH,
        _COUPLED_ROWS,
        _OF_TORCH,
    }
    if not reasons & _told.get(model, set()):
        _tell(model, _MIXING_STEP, method, is_other_loss=True)


def tell_of_logs_that_are_no_means(model: Any, names: str) -> None:
    """Warns of values of a `train_step` that were averaged."""
    _tell(model, _NO_MEANS, names)


def tell_of_normalization_by_torch(model: Any, names: str) -> None:
    """Warns of modules that see the rows of a rank."""
    _tell(model, _OF_TORCH, names, is_other_loss=True)


def tell_of_states_that_are_no_sums(model: Any, names: str) -> None:
    """Warns of metrics that do not add up over rows."""
    _tell(model, _NO_SUMS, names)


def tell_of_joined_rest(model: Any, num_rows: int, num_ranks: int) -> None:
    """Warns of steps that are not those of one process."""
    _tell(model, _JOINED, f"a rest of {num_rows} for {num_ranks} ranks")


def tell_of_unequal_rows(received: str) -> None:
    """Warns of a loop whose loss is none over the rows of all ranks."""
    if received not in _told_rows:
        _told_rows.add(received)
        _warn(_UNEQUAL_ROWS % received)


def tell_of_plain_optimizer(model: Any) -> None:
    """Warns that ranks train alone; call it if no optimizer reduces."""
    optimizer = type(getattr(model, "optimizer", None)).__name__
    received = f"the plain optimizer {optimizer}"
    _tell(model, _PLAIN, received, about=remarks.TRAINS_ALONE)


def tell_of_different_weights(model: Any, difference: str) -> None:
    """Warns that ranks have got different weights by training."""
    _tell(model, _APART, difference, about=remarks.TRAINS_ALONE)


def tell_of_same_data(model: Any, received: str) -> None:
    """Warns that all ranks seem to have the same data."""
    _tell(model, _SAME_DATA, received, about=remarks.SAME_DATA)


def tell_of_rates(model: Any, difference: str) -> None:
    """Warns of learning rates that differ by rank before the first step."""
    _tell(model, _RATES, difference)


def tell_of_unknown_states(model: Any, labels: list[str]) -> None:
    """Warns of states that differ by rank; of each label once."""
    told = _told.setdefault(model, set())
    new = [label for label in labels if label not in told]
    told.update(new)
    if new:
        _warn(_UNKNOWN_STATES % ", ".join(new))


def tell_of_untracked_state(model: Any, difference: str) -> None:
    """Warns that ranks differ in what Keras does not know."""
    _tell(model, _UNTRACKED, difference)


def tell_of_metrics(model: Any, received: str) -> None:
    """Warns of metrics that are not those of all rows."""
    _tell(model, _METRICS, received)


def tell_of_counted_steps(model: Any, names: str) -> None:
    """Warns of metrics whose states are no sums over rows."""
    _tell(model, _COUNTED_STEPS, names)


def tell_of_own_metrics(model: Any, *, in_fit: bool) -> None:
    """Warns of metrics that differ by rank."""
    if _told.get(model, set()).isdisjoint([_OWN_LOGS, _OWN_METRICS]):
        text = _OWN_LOGS if in_fit else _OWN_METRICS
        _tell(model, text, "a share of `hvd.shard`, no such callback,")


def tell_of_own_statistics(model: Any) -> None:
    """Says, once, that some layers see the rows of their rank alone."""
    told = _told.setdefault(model, set())
    names = [
        layer.name
        for layer in models.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
        and not hasattr(layer, "hvd_moments")
    ]
    if names and _OWN_STATISTICS not in told:
        told.add(_OWN_STATISTICS)
        shown = f"BatchNormalization ({', '.join(names[:3])}"
        log.info(_OWN_STATISTICS % f"{shown}{', ...' * (len(names) > 3)})")


def tell_of_own_logs(model: Any, callbacks: list[Any]) -> None:
    """Says that a `fit` has reported each rank's own rows.

    Warns if a callback of Keras has decided by them.
    """
    if any(map(_decides_by_logs, callbacks)):
        tell_of_own_metrics(model, in_fit=True)
        return
    told = _told.setdefault(model, set())
    if told.isdisjoint([_OWN_LOGS, _OWN_METRICS, "fit"]):
        told.add("fit")  # a later `fit` may have such a callback
        log.info(_OWN_LOGS % "a share of `hvd.shard`, no such callback")


def _decides_by_logs(callback: Any) -> bool:
    """Whether a callback of Keras looks at what training reports."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        looks = callback.save_best_only
    else:
        looks = isinstance(callback, _MONITORS)
    # Validation has a warning of its own, if it was shared out.
    return bool(looks and not callback.monitor.startswith("val_"))


_MONITORS = keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau


def tell_of_own_predictions(model: Any) -> None:
    """Warns of predictions of a part of the rows."""
    _tell(model, _OWN_PREDICTIONS, "a share of `hvd.shard`")


def tell_of_unequal_adaptations(model: Any, received: str) -> None:
    """Warns of statistics of other rows on some ranks."""
    _tell(model, _ADAPTED, received)


def tell_of_global_mean() -> None:
    """Warns, once, of a loss that is divided by the rows of all ranks."""
    _tell(keras, _GLOBAL_MEAN, "`tf.nn.compute_average_loss`")


def tell_of_own_stop(model: Any, ranks: list[int]) -> None:
    """Warns of a training that the metrics of some ranks have ended."""
    _tell(model, _OWN_STOP, f"a stop of ranks {', '.join(map(str, ranks))}")


def tell_of_filled_metric(metric: Any) -> None:
    """Warns of a metric that counts rows which only fill a batch."""
    _tell(metric, _FILLED, repr(metric.name))


def _tell(
    model: Any,
    text: str,
    received: str,
    *,
    is_other_loss: bool = False,
    about: str = "",
) -> None:
    told = _told.setdefault(model, set())
    if text not in told:
        told.add(text)
        _warn(text % received, about)
        for function in at_other_loss if is_other_loss else ():
            function(text % received)


def _warn(text: str, about: str = "") -> None:
    """Warns now, and has hvdrun say it again when the job has ended."""
    if training_signs.place_of_fit:
        text = f"{text.rstrip('.')} in `fit` at {training_signs.place_of_fit}."
    elif (place := user_code.place()) and place not in text:
        text = f"{text.rstrip('.')} at {place}."
    log.mistake(text, about)


def has_own_train_step(model: Any) -> bool:
    """Whether the user has written the model's `train_step`."""
    module = getattr(type(model).train_step, "__module__", "")
    return not module.startswith("keras.")


def any_reduces(model: Any) -> bool:
    """Whether any optimizer of the model is distributed."""
    # To look at all layers takes longer.
    return _reduces(getattr(model, "optimizer", None)) or any(
        map(_reduces, models.optimizers_of(model))
    )


def _reduces(optimizer: Any) -> bool:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _reduces(optimizer.inner_optimizer)
    inner = getattr(optimizer, "optimizers", None)  # of a MultiOptimizer
    if isinstance(inner, list | tuple):
        return any(map(_reduces, inner))
    return isinstance(optimizer, OptimizerHooks)
