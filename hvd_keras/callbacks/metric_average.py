"""The callback that computes metrics over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras import _native, basics, objects
from hvd_keras._gradients import order_check
from hvd_keras._gradients.aggregation import aggregation_of
from hvd_keras._keras import advice, metric_functions
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import names as private
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.steps import has_parts_of_loss
from hvd_keras.exceptions import MismatchError
from hvd_keras.reduce_op import Sum

Logs = Any

# An attribute of a model, in `vars(model)`: metrics that seem to count steps.
_COUNTING = "_hvd_counting_steps"
# An attribute of a metric, in `vars(metric)`: its states are no sums.
_IS_NO_SUM = "_hvd_is_no_sum"


class MetricAverageCallback(ForKeras3, keras.callbacks.Callback):
    """Reports metrics over the samples of all ranks, in `fit` and `evaluate`.

    It sums the *states* of metrics over the ranks and computes the values from
    the sums. Recall, AUC, F1, R2 and the mean loss are those of one process
    with all samples, also if the ranks have different numbers of samples. (The
    mean of two ranks' recalls is not the recall of both.) All callbacks see the
    result, in any order; so do `History`, `EarlyStopping` and the value that
    `evaluate` returns. The progress of a running epoch stays that of the rank.

    Other values are averaged over the ranks instead: logs of your own
    `train_step` that are no value of a metric of the model, metrics with a
    variable whose `aggregation` is other than "sum", and those without any
    variable. They are weighted by samples if Keras counts samples for the loss.
    Logs that are no metric's are those of an epoch's last step, and weighted by
    its rows. A loss of Keras's own steps has its weight already.
    So are functions that return one value for a batch: their means over the
    batches of all ranks are reported. Both are told once by name, unless you
    have said so.

    Keras's `add_variable` has "sum" as its default; so your own metrics are
    summed. A state may not add up over samples, such as a largest value. Its
    metric must say so, or it reports nonsense; see the second example.

    All ranks that train or evaluate have the callback, or none.

    Raises:
        MismatchError: From `fit` or `evaluate`, on all ranks: ranks have
            different metrics or logs; or an `evaluate` outside of `fit` has
            data of `hvd.shard`, which ranks have read in different orders, or
            a model that nobody has compared, with different weights.

    Example:

    >>> average = hvd.callbacks.MetricAverageCallback()
    >>> model.fit(dataset, validation_data=held_out, callbacks=[average])
    >>> model.evaluate(held_out, callbacks=[average])

    >>> class Largest(keras.metrics.Metric):
    ...     def __init__(self):
    ...         super().__init__(name="largest")
    ...         self.value = self.add_variable((), "zeros", aggregation="none")
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        _begin(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        _end(self.model)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        _begin(self.model)
        order_check.watch_evaluation(self.model)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        order_check.end_evaluation()
        _end(self.model)


class _Hook:
    """Stands in for the method of a model that computes logs.

    It answers for all ranks in calls of `fit` and `evaluate` that have the
    callback. In other calls it answers for the rank: they may run on that rank
    alone, such as an `evaluate` in a user's callback or after a `fit` that
    raised.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.get_logs = getattr(model, private.GET_LOGS)
        self.calls: list[keras_calls.Call] = []

    def __call__(self, logs: Logs) -> Logs:
        if any(keras_calls.is_caller(call) for call in self.calls):
            return global_logs(self.model, self.get_logs, logs)
        self.forget_ended_calls()
        return self.get_logs(logs)

    def forget_ended_calls(self) -> None:
        running = keras_calls.running_calls()
        self.calls = [c for c in self.calls if any(c is r for r in running)]
        if not self.calls:
            self.model.__dict__.pop(private.GET_LOGS, None)


def _begin(model: keras.Model) -> None:
    # An attribute of the instance hides the method of the class.
    hook = model.__dict__.get(private.GET_LOGS)
    if not isinstance(hook, _Hook):
        hook = _Hook(model)
    hook.forget_ended_calls()
    model.__dict__[private.GET_LOGS] = hook
    # A loop that drives callbacks by hand makes no such call. It reads the
    # metrics itself, so there is no method to stand in for.
    for call in keras_calls.running_calls()[:1]:
        call.sums_metrics = True
        # Another callback in the same call must not sum the sums.
        if all(other is not call for other in hook.calls):
            hook.calls.append(call)


def _end(model: keras.Model) -> None:
    hook = model.__dict__.get(private.GET_LOGS)
    if isinstance(hook, _Hook):
        ending = keras_calls.running_calls()[:1]
        hook.calls = [call for call in hook.calls if call not in ending]
        hook.forget_ended_calls()


def global_logs(
    model: keras.Model, get_logs: Callable[[Logs], Logs], logs: Logs
) -> Logs:
    """Returns `get_logs(logs)` as if this rank had seen all samples."""
    metrics = _leaf_metrics(model.metrics)
    _tell_of_means(model, metrics)
    additive = [metric for metric in metrics if _is_additive(metric)]
    num_samples = num_samples_of(model)
    states = _unique_variables(additive)
    local = [np.asarray(state.numpy()) for state in states]
    for state, total in zip(states, _sums(local), strict=True):
        state.assign(np.asarray(total))
    summed = dict(_flat(model.get_metrics_result()))
    is_keras = not logs or set(logs) == set(summed)
    # A rank without any batch has no logs, but knows the sums.
    own_logs = {} if is_keras else get_logs(logs)
    values = dict(summed) if is_keras else dict(_flat(own_logs))
    for state, value in zip(states, local, strict=True):
        state.assign(value)
    are_keras = all(map(_is_of_keras, metrics))
    if is_keras and are_keras and len(additive) == len(metrics):
        return values
    own = dict(_flat(model.get_metrics_result()))
    _tell_of_counted_steps(model, additive, num_samples, own, summed)
    if is_keras and len(additive) == len(metrics):
        return values
    # A `train_step` may log a metric's value, under any name. If they agree on
    # this rank, take the value from the sums: it is exact.
    mine = dict(_flat(logs)) if logs else own
    of_metrics = {}
    for key in sorted(values):
        if is_keras:
            names = [key] if key in summed else []
        else:
            names = [
                name
                for name in sorted(summed, key=lambda name: (name != key, name))
                if key in mine and _is_same(mine[key], own[name])
            ]
        if names:
            of_metrics[key] = names[0]
    of_last_step = set() if is_keras else set(values) - set(of_metrics)
    found = _average(values, num_samples, summed, of_metrics, of_last_step)
    # Keras sorts names, and then those in a dict, so it must stay a dict.
    return found if is_keras else _as_deep(own_logs, found)


def _as_deep(logs: Logs, flat: dict[str, Any]) -> Logs:
    return {
        key: _as_deep(value, flat) if isinstance(value, dict) else flat[key]
        for key, value in logs.items()
    }


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values as Keras logs them, from nested dicts too."""
    for key, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield key, _as_value(value)


def _is_same(value: Any, other: Any) -> bool:
    # Keras makes numbers of arrays of one element, where NumPy lets it.
    return np.size(value) == np.size(other) and np.allclose(
        np.ravel(value), np.ravel(other), rtol=1e-5, equal_nan=True
    )


def _is_equal(value: Any, other: Any) -> bool:
    return value is not None and np.array_equal(value, other, equal_nan=True)


def _sums(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    if not arrays:
        return []
    name = "MetricAverageCallback/states"
    sums: list[Any] = _native.core().allreduce(name, arrays, int(Sum))
    return sums


def _average(
    values: dict[str, Any],
    weight: float,
    summed: dict[str, Any],
    of_metrics: dict[str, str],
    of_last_step: set[str],
) -> dict[str, Any]:
    """Averages values over the ranks; equal ones stay as they are."""
    numbers = {
        key: value
        for key, value in values.items()
        if isinstance(value, float | np.ndarray)
    }
    sums = {
        key: _as_value(np.reshape(summed[name], np.shape(numbers[key])))
        for key, name in of_metrics.items()
        if key in numbers
    }
    calls, rows = keras_calls.running_calls()[:1], _rows_of_last_step()
    gathered = objects.allgather_object(
        {
            "weight": weight,
            "rows": 1.0 if any(map(has_parts_of_loss, calls)) else rows,
            "of_last_step": sorted(of_last_step),
            "values": numbers,
            "sums": sums,
            "may_lack_rows": any(
                call.rows.may_fill and not call.rows.fills_in_part and not rows
                for call in calls
            ),
        },
        name="MetricAverageCallback/values",
    )
    keys = [sorted(each["values"]) for each in gathered]
    if any(names != keys[0] for names in keys):
        raise MismatchError(
            "All ranks must log the same values. Received: logs with the "
            f"keys {keys} on ranks 0 to {len(keys) - 1}."
        )
    for key in numbers:
        # Equal on all ranks: they come from sums, not from the rank's state.
        # A rank without rows in the last step has logged what its metrics
        # have not counted.
        known = [
            each["sums"].get(key)
            for each in gathered
            if key in each["sums"] or not each["may_lack_rows"]
        ]
        if known and all(_is_equal(value, known[0]) for value in known):
            for each in gathered:
                each["values"][key] = known[0]
    samples = [each["weight"] for each in gathered]
    if sum(samples) <= 0.0:
        samples = [1.0] * basics.size()
    of_step = [each["rows"] for each in gathered]
    has_rows = None not in of_step and sum(of_step) > 0.0
    averages = {}
    for key in numbers:
        is_of_step = all(
            key in each["of_last_step"] or each["may_lack_rows"]
            for each in gathered
        )
        weights = of_step if has_rows and is_of_step else samples
        columns = [np.asarray(each["values"][key]) for each in gathered]
        average = np.average(np.stack(columns), axis=0, weights=weights)
        averages[key] = _as_value(average)
    return {**values, **averages}


def _rows_of_last_step() -> float | None:
    """Returns this rank's rows in the last step that count; None: unknown.

    What Keras gives as the logs of an epoch is what its last step has logged.
    """
    for call in keras_calls.running_calls()[:1]:
        if call.rows_of_step is not None:
            rows = float(_as_value(call.rows_of_step))
            return None if np.isnan(rows) else rows
    return None


def num_samples_of(model: keras.Model) -> float:
    """Number of samples in the loss that Keras tracks; 0 without one."""
    for metric in model.metrics:
        if isinstance(metric, keras.metrics.Mean) and metric.name == "loss":
            return float(metric.count.numpy())
    return 0.0


def _leaf_metrics(metrics: list[Any]) -> list[Any]:
    """Replaces metrics that hold other metrics by those."""
    leaves: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        if isinstance(inner, list):
            leaves += _leaf_metrics(inner)
        else:
            leaves.append(metric)
    return leaves


def average_over_ranks(metric: Any) -> None:
    """Lets a metric be averaged over the ranks. All ranks call this."""
    vars(metric)[_IS_NO_SUM] = True


def _is_of_keras(metric: Any) -> bool:
    return type(metric).__module__.startswith("keras.")


def _is_additive(metric: Any) -> bool:
    variables = metric.variables
    if _IS_NO_SUM in vars(metric):
        return False
    if not variables:  # some of Keras's have them after their first update
        return _is_of_keras(metric)
    return all(aggregation_of(each) == "sum" for each in variables)


def _tell_of_means(model: keras.Model, metrics: list[Any]) -> None:
    """Names the metrics that nobody has declared to be means."""
    if basics.size() == 1 or basics.rank() != 0:
        return
    found = [
        f"{metric.name!r}, whose function returns one value for a whole batch"
        for metric in metrics
        if metric_functions.is_of_whole_batch(metric)
    ]
    found += [
        f"{metric.name!r} ({type(metric).__name__}), which has no variables"
        for metric in metrics
        if not metric.variables and not _is_additive(metric)
    ]
    if found:
        advice.tell_of_metrics(model, "; ".join(found))


def _tell_of_counted_steps(
    model: keras.Model,
    metrics: list[Any],
    num_samples: float,
    own: dict[str, Any],
    summed: dict[str, Any],
) -> None:
    """Names the metrics whose value is the number of steps, twice running."""
    calls = keras_calls.running_calls()[:1]
    if basics.size() == 1 or basics.rank() != 0 or not calls:
        return
    steps = getattr(calls[0].epochs, "num_batches", None)
    found = set()
    if steps and num_samples != steps:  # else each has one row
        found = {
            f"{metric.name!r} ({type(metric).__name__})"
            for metric in metrics
            if not _is_of_keras(metric)
            and own.get(metric.name) == steps
            and summed.get(metric.name) == steps * basics.size()
        }
    both = found & vars(model).get(_COUNTING, set())
    vars(model)[_COUNTING] = found
    if both:
        advice.tell_of_counted_steps(model, ", ".join(sorted(both)))


def _unique_variables(metrics: list[Any]) -> list[Any]:
    variables = {id(v): v for metric in metrics for v in metric.variables}
    return list(variables.values())


def _as_value(value: Any) -> Any:
    """Turns a number into a float and a tensor into an array."""
    if keras.ops.is_tensor(value) or isinstance(value, keras.Variable):
        value = keras.ops.convert_to_numpy(value)
    if isinstance(value, np.ndarray | np.generic | int | float):
        array = np.asarray(value)
        return float(array) if array.ndim == 0 else array
    return value
