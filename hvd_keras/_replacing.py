"""Replaces what `_common/replacement_table.py` lists, at one moment.

`install` runs as soon as both hvd_keras and the package have been imported, so
it does not matter which comes first, or when `init()` is called.
"""

from __future__ import annotations

import importlib

import keras

from hvd_keras import _backends, warmup  # noqa: F401, files may have it
from hvd_keras._gradients import (
    distributed_class,
    fit_check,
    loss_means,
    mixed_rows,
    order_check,
    rank_files,
    settings_check,
    step_counts,
    step_times,
)
from hvd_keras._job import training_step
from hvd_keras._keras import (
    advice,
    callback_lists,
    metric_functions,
    normalization,
    patches,
    random_streams,
    saved_forms,
    training_calls,
    writers,
)
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras.callbacks import _habits, _meetings, _rates, steps_guard
from hvd_keras.callbacks.metric_average import global_logs
from hvd_keras.data import _own_loops
from hvd_keras.layers import _moments
from hvd_keras.optimizer import DistributedOptimizer


def install() -> None:
    """Hooks into Keras. A second call does nothing."""
    name = keras.backend.backend()
    if name not in _backends.NAMES:  # such as NumPy, which cannot train
        return
    keras_calls.install()
    training_calls.install()
    keras_epochs.install()
    callback_lists.install()
    random_streams.install()
    loss_means.install()
    metric_functions.install()
    backend = _backends.current()
    backend.prepare(distributed_class.reduces_over_ranks, mixed_rows.tell)
    backend.keep_from_averaging(advice.any_reduces)
    patches.patch_check_finite(distributed_class.check_finite_on_all_ranks)
    patches.patch_auto_jit_compile(distributed_class.must_not_use_xla)
    keras_epochs.at_batch.add(training_step.tell_position)
    keras_epochs.at_data.add(fit_check.compare_data)
    fit_check.at_data.add(steps_guard.compare_plans)
    fit_check.at_data.add(loss_means.know_rows)
    fit_check.at_data.add(settings_check.compare_settings)
    fit_check.at_data.add(_rates.compare_first)
    fit_check.at_data.add(rank_files.share_out)
    fit_check.at_data.add(order_check.find_shared)
    callback_lists.at_train_begin.add(_meetings.begin)
    callback_lists.at_train_begin.add(fit_check.compare_models)
    callback_lists.at_train_begin.add(_habits.watch)
    callback_lists.at_train_begin.add(step_counts.count_steps_of_fit)
    callback_lists.at_train_begin.add(step_times.watch_beginning_fit)
    callback_lists.at_train_begin.add(order_check.watch)
    saved_forms.install()
    writers.patch_saving(rank_files.has_others)
    normalization.patch_synchronized_moments(_moments.synchronized_moments)
    if name == "tensorflow":
        _own_loops.watch_means()
        importlib.import_module("hvd_keras._keras.tensorflow").install()
        hooks = importlib.import_module("hvd_keras._gradients.strategy_hooks")
        hooks.install(DistributedOptimizer, global_logs)
