"""The callback that starts all ranks from the same state."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, _native, basics, objects
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._gradients.distributed_class import (
    is_distributed,
    local_variables_of,
    unwrapped,
)
from hvd_keras._keras import names as private
from hvd_keras._keras.legacy import refuse_tf_keras
from hvd_keras._values import agreement
from hvd_keras.callbacks.steps_guard import StepsGuard
from hvd_keras.callbacks.sync_early_stopping import stop_together
from hvd_keras.reduce_op import Average
from hvd_keras.variables import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the model and the optimizer of `root_rank`.

    It broadcasts when training begins, before the first step: weights, the
    step count, the learning rate, and the optimizer's slots if a rank has any.
    Slots that are made later start equal. Some models are built only by their
    first batch (a subclass of `keras.Model`, a `Sequential` without an input);
    they get the state after that batch.

    Steps change some weights without a gradient, such as the moving mean and
    variance of `BatchNormalization`, from the rank's own batches. At the end of
    each epoch, before validation, those that differ become their mean over the
    ranks. So all ranks predict and save the same. Callbacks that save without
    validation must come after this one. With equal shares, the mean is that of
    all samples. The variance is the mean of the variances within the ranks'
    batches, without the variance between them. `hvd.SyncBatchNormalization`
    takes the statistics of the whole batch, in training too; they are equal on
    all ranks and stay as they are.

    Each rank keeps its own metrics, its own sums of gradients that are being
    accumulated, and its own states of seed generators. These states are moved
    apart by rank, once each: ranks may set the same seed, for the same initial
    weights, and must not drop the same units.

    It contains two other callbacks:

    - `StepsGuard` asks all ranks how many epochs and steps they are about to
      run. Ranks that would leave each other waiting get an error at once.
    - `SyncEarlyStopping`: if a callback stops the training on one rank, all
      ranks stop after the same batch.

    Args:
        root_rank: The rank whose state all ranks get.
        local_variables: Weights of the model that are not broadcast, in
            addition to those registered as local with the optimizer.

    Raises:
        MismatchError: From `fit`, on all ranks: ranks have different models,
            or plans that `StepsGuard` refuses.

    Example:

    >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    >>> model.fit(dataset, callbacks=callbacks)
    """

    def __init__(
        self, root_rank: int = 0, local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.local_variables = list(local_variables or ())
        self.root_rank = root_rank
        self._is_pending = False
        self._is_unaveraged = False
        self._offset_states: list[Any] = []
        self._steps_guard = StepsGuard()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        refuse_tf_keras(self.model)
        model = self.model
        self._warn_if_plain(model)
        self._steps_guard.set_params(self.params)
        self._steps_guard.set_model(model)
        self._steps_guard.on_train_begin()
        stop_together(model)
        is_built = self._prepare(model)
        self._is_unaveraged = False
        if is_built:
            self._broadcast(model)
        # Not in `on_train_batch_end`: it makes Keras wait for each batch. The
        # methods below come just as early.
        self._is_pending = not is_built

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._steps_guard.on_epoch_begin(epoch)
        self._is_unaveraged = True

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._is_unaveraged = True
        if self._is_pending and batch > 0:
            self._broadcast(self.model)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._finish_epoch()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._finish_epoch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._steps_guard.on_train_end()

    def _finish_epoch(self) -> None:
        if self._is_pending:
            self._broadcast(self.model)
        if self._is_unaveraged:
            self._is_unaveraged = False
            _average_statistics(self.model)

    def _prepare(self, model: keras.Model) -> bool:
        """Builds slots that some ranks have; says if all models are built."""
        plan = {
            "is_built": private.is_fully_built(model),
            "has_slots": bool(getattr(model.optimizer, "built", False)),
        }
        plans = objects.allgather_object(
            plan, name="BroadcastGlobalVariablesCallback/plan"
        )
        is_built = all(each["is_built"] for each in plans)
        some_have_slots = any(each["has_slots"] for each in plans)
        # If no rank has slots, the first step builds the optimizer: it may get
        # more variables than those of the model.
        if is_built and some_have_slots and not plan["has_slots"]:
            model.optimizer.build(model.trainable_variables)
        return is_built

    def _broadcast(self, model: keras.Model) -> None:
        self._is_pending = False
        local = [*self.local_variables, *local_variables_of(model.optimizer)]
        local_ids = {private.identity_of(variable) for variable in local}
        variables = [
            v for v in model.weights if private.identity_of(v) not in local_ids
        ]
        if model.optimizer is not None:
            variables += _common_variables(model)
        broadcast_variables(variables, self.root_rank)
        self._move_seeds_apart(model)

    def _move_seeds_apart(self, model: keras.Model) -> None:
        weights = {id(variable) for variable in model.weights}
        moved = {id(state) for state in self._offset_states}
        for state in model.variables:
            if id(state) in weights or id(state) in moved:
                continue
            if tuple(state.shape) != (2,):  # a seed and its count of uses
                continue
            self._offset_states.append(state)
            seed, counter = np.asarray(state.numpy()).tolist()
            state.assign([seed_of_rank(seed, basics.rank()), counter])

    def _warn_if_plain(self, model: keras.Model) -> None:
        if basics.size() > 1 and not is_distributed(model.optimizer):
            warnings.warn(
                "The model's optimizer should be an hvd_keras "
                "DistributedOptimizer. Otherwise the ranks train apart, unless "
                "the model's own `train_step` reduces gradients. Received: "
                f"{type(model.optimizer).__name__} (rank {basics.rank()}).",
                stacklevel=2,
            )


def _common_variables(model: keras.Model) -> list[Any]:
    """Returns the optimizer's variables that all ranks share."""
    optimizer = model.optimizer
    sums = private.gradient_accumulators_of(unwrapped(optimizer))
    own = {id(variable) for variable in sums}
    return [v for v in optimizer.variables if id(v) not in own]


def _average_statistics(model: keras.Model) -> None:
    """Averages over the ranks what steps changed without a gradient.

    Frozen weights are equal on all ranks and stay as they are, bit for bit.
    """
    statistics = [
        (weight, _backends.current().read(weight))
        for weight in model.non_trainable_weights
        if keras.backend.is_float_dtype(weight.dtype)
    ]
    name = "BroadcastGlobalVariablesCallback/statistics"
    differing = [
        statistics[index]
        for index in agreement.differing_indices(
            f"{name}/digests", [value for _, value in statistics]
        )
    ]
    if not differing:
        return
    arrays = [
        value.astype(np.result_type(value.dtype, np.float32), copy=False)
        for _, value in differing
    ]
    means = _native.core().allreduce(name, arrays, int(Average))
    for (weight, _), mean in zip(differing, means, strict=True):
        weight.assign(np.asarray(mean))
