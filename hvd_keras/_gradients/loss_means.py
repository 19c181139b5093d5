"""Makes the means in a model's losses those of one process; see `batch`.

Each step gets a batch that knows which rows count, and the other ranks' rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import keras

from hvd_keras import _backends, basics
from hvd_keras._gradients import mixed_rows
from hvd_keras._gradients.batch import Batch, real_rows, tensors_in
from hvd_keras._gradients.distributed_class import distributed_part
from hvd_keras._job import membership
from hvd_keras._keras import advice, callback_lists, models, traces
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras import losses as keras_losses
from hvd_keras._keras import steps as keras_steps
from hvd_keras._keras.step_hook import trace_anew
from hvd_keras._values.agreement import Check, differing, together
from hvd_keras.data import _own_loops
from hvd_keras.data._counts import (
    Counts,
    counts_of,
    has_fixed_rows,
    source_of,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, Sum

# Attributes of a model, in `vars(model)`: what its test function is for, and
# the rows of its last training and test step.
_TESTS_FOR = "_hvd_tests_for"
_ROWS = "_hvd_rows_of_step"


def install() -> None:
    """Hooks into Keras."""
    keras_losses.hook(_begin)
    keras_steps.install(_begin_step, mixed_rows.watching, _end_step)
    keras_epochs.at_data.add(_note_data)
    keras_epochs.weighs_classes.add(_weighs_classes)
    callback_lists.at_test_begin.add(_renew_test_function)
    keras_calls.at_end.add(_end_call)


def _begin_step(step: keras_steps.Step) -> Batch | None:
    """Begins the batch of a step; None if the step is this rank's own."""
    weights = step.sample_weight if step.marks is None else step.marks
    _note_rows(step, weights)
    return _begin(
        step.model,
        step.x,
        step.y,
        None,
        weights,
        step.training,
        marks=step.marks,
        call=step.call,
    )


def _note_rows(step: keras_steps.Step, weights: Any) -> None:
    """Leaves the rows of a step that count to those who read its logs.

    Elsewhere they are known from the batch, which Python gives to the step.
    """
    cell = vars(step.model).get(_ROWS, {}).get(step.training)
    tensors = [*tensors_in(step.y), *tensors_in(step.x)]
    if cell is None or not tensors:
        return
    marks = tensors_in(weights) if step.call.rows.may_fill else []
    rows = real_rows(keras.ops.shape(tensors[0])[0], *marks[:1])
    cell.assign(keras.ops.cast(rows, "float32"))


def _end_step(step: keras_steps.Step) -> None:
    """Refuses or tells what cannot be known of a step's loss."""
    batch, method = step.batch, step.own_method
    if batch.is_partial and not batch.leaves_out:
        raise ValueError(
            "Losses must leave out rows that only fill a batch: pass batches "
            "to `super().compute_loss` or to `hvd.global_mean`, or take "
            'another `policy` in `hvd.shard`: "split" fills no batch in part, '
            f'"drop" drops the rest. Received: {method or "a step"} with data '
            'dealt by `policy="pad"`.'
        )
    step.note_loss(is_part=batch.has_part_of_loss)
    name = method or f"the step of {type(step.model).__name__}"
    tells = []
    if "sum" in batch.sums_of_rows:
        tells.append(advice.tell_of_sum_of_rows)
    # Of losses of Keras that are ratios, the start of `fit` tells.
    if "ratio" in batch.sums_of_rows and not (
        keras_losses.losses_of_whole_batches(step.model)
    ):
        tells.append(advice.tell_of_ratio_of_rows)
    if batch.changes_gradients and method is not None:
        advice.tell_of_changed_gradients(step.model, method)
    if (
        step.training
        and method is not None
        and not batch.has_known_mean
        and batch.weight is not None
        and basics.rank() == 0
    ):
        tells.append(advice.tell_of_unknown_mean)
    for tell in tells:
        if step.call.tries_steps and (
            method is not None or tell is advice.tell_of_ratio_of_rows
        ):
            doubt = functools.partial(tell, step.model, name)
            step.call.doubts.append(doubt)
        else:
            tell(step.model, name)


def _begin(
    model: Any,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    training: bool,
    *,
    marks: Any = None,
    call: Any = None,
) -> Batch | None:
    """Begins a batch; None if its loss is this rank's own."""
    inputs = tensors_in(x)
    tensors = [*tensors_in(y), *inputs, *tensors_in(y_pred)]
    if not tensors:
        return None
    rows = keras.ops.shape(tensors[0])[0]
    first = rows
    known = keras_calls.Rows(may_fill=False) if call is None else call.rows
    if inputs and inputs[0] is not tensors[0] and not known.are_same:
        first = keras.ops.shape(inputs[0])[0]
    weights = tensors_in(sample_weight) if known.may_fill else []
    arguments = {
        "rows": rows,
        "first": first,
        "weights": weights[0] if weights else None,
        "marks": marks,
        "is_partial": bool(weights) and known.fills_in_part,
        "known": known,
        "is_eager": bool(model.run_eagerly),
        "can_cut": _can_cut(model),
        "data": [*tensors_in(y), *inputs],
    }
    if training:
        return _begin_training(model, call, arguments)
    return _begin_test(model, call, arguments)


def _begin_training(
    model: Any, call: Any, arguments: dict[str, Any]
) -> Batch | None:
    part = distributed_part_of(model)
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
    if call is None:
        _own_loops.note_exact_loss()
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
        counts = call.rows.counts
    if call is None or call.is_watched or basics.rank() != 0:
        arguments["data"] = []
    # A step has one batch; a count would outlive a step that fails.
    number = part.hvd_next_loss() if call is None else 0
    return Batch(
        **arguments,
        counts=counts,
        name=f"{part.hvd_reducer.name()}/loss_{number}",
        process_set=part.hvd_row_set,
        sum_factor=sum_factor,
        is_shared=True,
        asks=True,
    )


def _begin_test(
    model: Any, call: Any, arguments: dict[str, Any]
) -> Batch | None:
    vars(model)[_TESTS_FOR] = _key_of_test(call)
    is_global = (
        call is not None
        and call.sums_metrics
        and not _is_alone(global_process_set, call)
    )
    if not is_global and arguments["weights"] is None:
        return None
    return Batch(
        **arguments,
        counts=_counts_of_test(call) if is_global else None,
        name=f"evaluate{membership.name_suffix()}",
        process_set=global_process_set,
        sum_factor=1.0
        if models.has_our_strategy(model)
        else float(basics.size() if is_global else 1),
        is_shared=is_global,
        # Means over rows add up without a word between the ranks, unless
        # Keras weighs a batch by something else.
        asks=is_global
        and (call.rows.counts is not None or call.rows.asks_in_tests),
    )


def distributed_part_of(model: Any) -> Any:
    """Returns the first distributed optimizer of a model, or None."""
    part = distributed_part(getattr(model, "optimizer", None))
    if part is not None:
        return part
    parts = map(distributed_part, models.optimizers_of(model))
    return next((part for part in parts if part is not None), None)


def _can_cut(model: Any) -> bool:
    """Whether the shapes of tensors in a step can depend on values."""
    is_compiled = keras.backend.backend() == "jax" or model.jit_compile
    return bool(model.run_eagerly or not is_compiled)


def _is_alone(process_set: ProcessSet, call: Any) -> bool:
    """Whether Keras's own means are right: one rank, nothing to leave out."""
    return process_set.size() == 1 and not (call and call.rows.may_fill)


def _is_sum(model: Any) -> bool:
    """Whether all losses of a model are sums over the batch."""
    reductions = keras_losses.reductions_of(model)
    return bool(reductions) and set(reductions) == {"sum"}


# ---- What a call knows of its data ----


def _note_data(call: Any) -> None:
    """Notes what all ranks know of the batches of `fit` or `evaluate`."""
    training = call.method == "fit"
    if keras_steps.own_method_of(call.model, training) is not None:
        cells = vars(call.model).setdefault(_ROWS, {})
        cells[training] = call.rows_of_step = _backends.current().make_cell(
            cells.get(training)
        )
    source, counts = source_of(call.data), counts_of(call.data)
    filled = source if source is not None and source.may_fill else None
    is_array = keras_epochs.arrays_of(call) is not None
    call.rows = keras_calls.Rows(
        may_fill=filled is not None,
        adds_weights=filled is not None and filled.adds_weights,
        fills_in_part=filled is not None and filled.fills_in_part,
        are_same=is_array or counts is not None,
        are_fixed=is_array or has_fixed_rows(call.data),
        asks_in_tests=source is not None
        and source.ends_together
        and (
            counts is None
            or keras_steps.own_method_of(call.model, training=False) is not None
            or (not counts.are_known() and _weighs_batches(call.model))
        ),
    )
    call.sums_metrics = call.sums_metrics or models.has_our_strategy(call.model)


def _weighs_batches(model: Any) -> bool:
    """Whether Keras reports means over batches, not over their rows."""
    return (
        keras.backend.backend() == "tensorflow"
        and len(keras_losses.reductions_of(model)) > 1
    )


def know_rows(call: Any, process_set: ProcessSet) -> Check:
    """Notes what all ranks know of the rows of a `fit`, and traces for it."""
    if process_set.size() != 1:
        yield from _agree_on_counts(call, process_set)
    if call.class_weight or not _is_alone(process_set, call):
        traces.switch(call.model, _key_of(call))


def _key_of(call: Any) -> Any:
    """What a train function is traced for: all that a step has as a constant.

    For weights that we add, a number for each row, TensorFlow would use one
    that was traced for those of a script, which may be of no known rank.
    """
    weights = (call.class_weight or {}).items()
    return call.rows, frozenset(
        (each, float(weight)) for each, weight in weights
    )


def _weighs_classes(data: Any) -> bool:
    """Whether steps apply the weights of classes to data, in Keras's place.

    It refuses weights beside those that we add, and for a dataset of TensorFlow
    also classes without a weight, which count once in arrays.
    """
    source = source_of(data)
    if source is None:
        return False
    spec = getattr(data, "element_spec", None)
    is_pair = isinstance(spec, tuple) and len(spec) == 2
    return is_pair or bool(source.may_fill and source.adds_weights)


def _end_call(call: Any) -> None:
    """Keeps what was traced for a `fit` from use outside of it."""
    if call.method == "fit":
        traces.switch(call.model, None)


def forget_counts(fit: Any, rest: int | None) -> None:
    """Lets the ranks of a `fit` ask each other for the rows of each step.

    Args:
        fit: The running call.
        rest: Rows of the last step of its first epoch, or 0 if that is full.
            Nothing changes if all ranks know it.
    """
    counts = fit.rows.counts
    if counts is None or counts.rest == rest:
        return
    fit.rows = dataclasses.replace(fit.rows, counts=None)
    trace_anew(fit.model)
    traces.note(fit.model, _key_of(fit))


def _agree_on_counts(call: Any, process_set: ProcessSet) -> Check:
    counts = counts_of(call.data)
    if counts is None and not call.rows.may_fill:
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
    # Whether the ranks ask each other must be equal on all.
    all_of_it = [own, call.rows.are_same, call.rows.are_fixed]
    values = yield from differing(all_of_it)
    if values is not None:
        call.rows = dataclasses.replace(
            call.rows, counts=None, are_same=False, are_fixed=False
        )
    elif own is not None:
        call.rows = dataclasses.replace(call.rows, counts=counts)


def _counts_of_test(call: Any) -> Counts | None:
    """Returns the counts that a test function is traced with."""
    counts: Counts | None = call.rows.counts
    if counts is None and call.rows.asks_in_tests:
        counts = counts_of(call.data)
    return counts if counts is not None and counts.are_known() else None


def _key_of_test(call: Any) -> tuple[Any, ...]:
    if call is None:
        return (False,)
    return call.sums_metrics, call.rows, _counts_of_test(call)


def _renew_test_function(call: Any) -> None:
    """Drops a test function that was traced for another kind of call."""
    # Of several losses, Keras takes the mean over the batches, without weights
    # if their shapes do not say how many rows they have.
    if (
        call.sums_metrics
        and len(keras_losses.reductions_of(call.model)) > 1
        and not _is_alone(global_process_set, call)
    ):
        check = _agree_on_counts(call, global_process_set)
        together("evaluate/batches", [check])
    traced_for = vars(call.model).get(_TESTS_FOR)
    if traced_for is not None and traced_for != _key_of_test(call):
        del vars(call.model)[_TESTS_FOR]
        call.model.test_function = None
        call.model.make_test_function()
