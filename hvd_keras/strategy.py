"""A `tf.distribute.Strategy` with one replica on each rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras import basics, objects
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._keras import callback_lists, models
from hvd_keras.callbacks._draws import draw_apart
from hvd_keras.data._datasets import shard_batches
from hvd_keras.ops.allgather import allgather
from hvd_keras.ops.allreduce import allreduce
from hvd_keras.ops.grouped_allreduce import grouped_allreduce
from hvd_keras.reduce_op import Average, ReduceOp, Sum
from hvd_keras.variables import broadcast_variables

_SEED_NAME = "seed_generator_state"  # that Keras gives such a variable
_ReduceOp = tf.distribute.ReduceOp


class HvdStrategy(tf.distribute.Strategy):
    """Runs programs for `tf.distribute` with a replica on each rank.

    A model that is made and compiled under `scope()` trains on all ranks with
    Keras's `fit`, and needs none of our callbacks:

    - Every rank passes all the data, and gets its part of each batch, in order
      of rank. So the batch size is that of all ranks together. Arrays are
      shuffled in the same way on all ranks. All ranks must see the same
      batches, so give a `tf.data` pipeline that shuffles a seed. Arrays and
      `tf.data.Dataset`s from `hvd.shard` stay as they are; a `PyDataset` must
      be whole.
    - Variables begin with the values of rank 0. Only the states of seed
      generators differ by rank.
    - `compile` makes the optimizer an `hvd.DistributedOptimizer`. It sums
      gradients before it clips them. With loss scaling, all ranks skip a step
      or none does.
    - The metrics of `fit` and `evaluate` are those of all ranks; `predict`
      returns all predictions, on every rank. So all ranks call them.
    - `BatchNormalization(synchronized=True)` takes the statistics of all ranks.

    If the ranks cannot share a batch evenly, they get unequal parts. Each row
    counts once in the loss and in the gradient.

    `model.save` and `model.save_weights` write on rank 0 and do nothing on the
    others; so does Keras's `ModelCheckpoint`. To resume a run, use
    `hvd.callbacks.BackupAndRestore`.

    In your own training loop, `run`, `reduce`, `gather`,
    `experimental_distribute_dataset` and the replica context's `all_reduce`
    and `all_gather` work. A plain optimizer there sums gradients after
    clipping, as under any other strategy.

    Raises:
        NotInitializedError: `init()` was not called.

    Example:

    >>> with hvd.HvdStrategy().scope():
    ...     model = build_model()
    ...     model.compile("adam", "mse")
    >>> model.fit(x, y, batch_size=64)
    """

    def __init__(self) -> None:
        basics.size()  # raises before `init()`
        super().__init__(_Extended(self))
        # Keras derives the order of arrays in `fit` from this seed.
        seed = objects.broadcast_object(random.getrandbits(31), 0)
        tf.random.set_seed(seed)
        callback_lists.at_train_begin.add(_draw_apart)


def _draw_apart(callback_list: Any) -> None:
    if models.has_our_strategy(callback_list.model):
        draw_apart(callback_list.model)


class _Extended(tf.compat.v1.distribute.StrategyExtended):
    """The methods that TensorFlow and Keras call; values are plain tensors."""

    hvd_is_ours = True

    def __init__(self, strategy: HvdStrategy) -> None:
        super().__init__(strategy)
        self._retrace_functions_for_each_device = False

    # ---- Variables ----

    def _create_variable(self, next_creator: Any, **kw: Any) -> Any:
        variable = next_creator(**kw)
        if not tf.executing_eagerly() or basics.size() == 1:
            return variable
        if _SEED_NAME in variable.name:  # it holds a seed and a use count
            seed, counter = variable.numpy().tolist()
            variable.assign([seed_of_rank(seed, basics.rank()), counter])
            return variable
        broadcast_variables([variable], 0)
        return variable

    def _validate_colocate_with_variable(self, variable: Any) -> None:
        """Accepts any variable: there is one copy of each."""

    def value_container(self, value: Any) -> Any:
        return value

    def read_var(self, variable: Any) -> Any:
        return tf.identity(variable)

    # ---- Where code runs ----

    def _call_for_each_replica(
        self, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        strategy = self._container_strategy()
        with tf.distribute.ReplicaContext(strategy, basics.rank()):
            return function(*args, **kwargs)

    def _update(
        self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, place: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        result = fn(*args, **kwargs)
        if group:
            return result
        return tf.nest.map_structure(self._local_results, result)

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        return self._update(var, fn, args, kwargs, group)

    def _use_merge_call(self) -> bool:
        return False

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> int:
        return 0

    # ---- Data ----

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> tf.data.Dataset:
        return shard_batches(dataset, basics.rank(), basics.size())

    def _distribute_datasets_from_function(
        self, function: Callable[[Any], Any], options: Any
    ) -> Any:
        size = basics.size()
        return function(tf.distribute.InputContext(size, basics.rank(), size))

    # ---- Collectives ----

    @as_it_is
    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        flat = tf.nest.flatten(value)
        reduced = grouped_allreduce(flat, _to_op(reduce_op))
        return tf.nest.pack_sequence_as(value, reduced)

    @as_it_is
    def _reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any
    ) -> Any:
        return allreduce(value, _to_op(reduce_op))

    @as_it_is
    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        order = list(range(len(value.shape)))
        order[0], order[axis] = order[axis], order[0]
        gathered = allgather(tf.transpose(value, order))
        return tf.transpose(gathered, order)

    # ---- Properties ----

    @property
    def _num_replicas_in_sync(self) -> int:
        return basics.size()

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return (tf.config.list_logical_devices()[0].name,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return self.worker_devices

    def _in_multi_worker_mode(self) -> bool:
        return basics.size() > 1

    @property
    def should_checkpoint(self) -> bool:
        return basics.rank() == 0

    @property
    def should_save_summary(self) -> bool:
        return basics.rank() == 0

    @property
    def _global_batch_size(self) -> bool:
        return True


Strategy = HvdStrategy  # as `hvd.Strategy`, like `tf.distribute.Strategy`


def _to_op(reduce_op: Any) -> ReduceOp:
    return Average if reduce_op == _ReduceOp.MEAN else Sum
