"""Trains one case in one process, on all ranks, or by what others offer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from equality import data

EPOCHS = 2


@dataclasses.dataclass
class Trained:
    """What training leaves.

    Args:
        weights: Those of the model, in its order.
        logs: Of `fit` one value an epoch, of `evaluate` one value.
    """

    weights: list[np.ndarray]
    logs: dict[str, Any] = dataclasses.field(default_factory=dict)


def momentum() -> Any:
    return keras.optimizers.SGD(0.01, momentum=0.9)


@dataclasses.dataclass(frozen=True)
class Fit:
    """A model that `fit` trains, its loss and data of some rows.

    Args:
        make_model: Returns the model of one process.
        make_data: Returns data of a number of rows.
        num_rows: That number.
        reduction: That of the loss.
        policy: How the rows are dealt to the ranks.
        op: How gradients are reduced.
        metrics: Given to `compile`.
        loss: The class of the loss.
        make_optimizer: Returns a plain optimizer.
        distribute: Options of `DistributedOptimizer`.
        passes: Batches whose gradients are added up before an update.
        compile: Further arguments of `compile`.
        model_of_ranks: Returns the model of N ranks, if it is another one.
        seeds_differ: Whether each rank begins with weights of its own.
        why_not_equal: Why the ranks may end elsewhere than one process. What
            is trained is compared alone.
        backends: Those that it concerns.
    """

    make_model: Callable[[], keras.Model] = data.dense_model
    make_data: Callable[[int], data.Data] = data.rows
    num_rows: int = 2 * data.GLOBAL_BATCH + 5
    reduction: str = "sum_over_batch_size"
    policy: str = "split"
    op: Any = hvd.Average
    metrics: tuple[Any, ...] = ("mae",)
    loss: Callable[..., Any] = keras.losses.MeanSquaredError
    make_optimizer: Callable[[], Any] = momentum
    distribute: dict[str, Any] = dataclasses.field(default_factory=dict)
    passes: int = 1
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)
    model_of_ranks: Callable[[], keras.Model] | None = None
    seeds_differ: bool = False
    why_not_equal: str = ""
    backends: tuple[str, ...] = ("tensorflow", "jax", "torch")

    def alone(self) -> Trained:
        """Trains in this process, without other ranks."""
        model = self._compiled(self.make_model, self.make_optimizer(), seed=3)
        x, y, weights = self._whole()
        batch_size = data.GLOBAL_BATCH * self.passes
        options: dict[str, Any] = {"verbose": 0, "sample_weight": weights}
        logs = model.fit(
            x, y, batch_size, epochs=EPOCHS, shuffle=False, **options
        ).history
        logs["evaluate"] = model.evaluate(
            x, y, data.GLOBAL_BATCH, return_dict=True, **options
        )
        return Trained(self._weights(model), logs)

    def ours(self) -> Trained:
        """Trains on all ranks, each with its share of the rows."""
        optimizer = hvd.DistributedOptimizer(
            self.make_optimizer(),
            op=self.op,
            backward_passes_per_step=self.passes,
            **self.distribute,
        )
        seed = 3 + (hvd.rank() if self.seeds_differ else 0)
        make_model = self.model_of_ranks or self.make_model
        model = self._compiled(make_model, optimizer, seed)
        share = hvd.shard(
            self.make_data(self.num_rows),
            batch_size=data.GLOBAL_BATCH // hvd.size(),
            policy=self.policy,
        )
        average = hvd.callbacks.MetricAverageCallback()
        callbacks = [average]
        if self.seeds_differ:
            broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback()
            callbacks.insert(0, broadcast)
        options: dict[str, Any] = {"verbose": 0, "callbacks": callbacks}
        logs = model.fit(share, epochs=EPOCHS, shuffle=False, **options).history
        options["callbacks"] = [average]
        logs["evaluate"] = model.evaluate(share, return_dict=True, **options)
        return Trained(self._weights(model), logs)

    def by_keras(self) -> Trained:
        """Trains by `keras.distribution.DataParallel`, on JAX's devices."""
        import jax

        parallel = keras.distribution.DataParallel(devices=jax.devices())
        keras.distribution.set_distribution(parallel)
        try:
            return self.alone()
        finally:
            keras.distribution.set_distribution(None)

    def by_ddp(self) -> Trained:
        """Trains by torch's DistributedDataParallel, as its guides say.

        Each rank takes every N-th row of a batch; the first rows are taken
        again where the rows do not divide.
        """
        import torch
        import torch.distributed as dist

        # torch takes parameters in the order of their names, and rank 0 has
        # made more layers so far.
        keras.utils.clear_session()
        optimizer = self.make_optimizer()
        model = self._compiled(self.make_model, optimizer, seed=3)
        arrays = [a for a in self._whole() if a is not None]
        if not model.built:
            model(_taken(arrays[0], slice(0, 1)))
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        rank, size = dist.get_rank(), dist.get_world_size()
        order = np.arange(self.num_rows)
        order = np.concatenate([order, order[: -len(order) % size]])
        batch_size = data.GLOBAL_BATCH * self.passes // size
        order = order[rank::size]
        for _ in range(EPOCHS):
            for first in range(0, len(order), batch_size):
                chosen = order[first : first + batch_size]
                x, y, *weights = (_taken(a, chosen) for a in arrays)
                weight = weights[0] if weights else None
                variables = model.trainable_variables
                model.zero_grad()
                outputs = parallel(x, training=True)
                loss = model.compute_loss(x, y, outputs, weight, training=True)
                loss.backward()
                gradients = [v.value.grad for v in variables]
                with torch.no_grad():
                    optimizer.apply(gradients, variables)
        optimizer.finalize_variable_values(model.trainable_variables)
        return Trained(self._weights(model))

    def _weights(self, model: keras.Model) -> list[np.ndarray]:
        if not self.why_not_equal:
            return model.get_weights()
        return [
            keras.ops.convert_to_numpy(variable)
            for variable in model.trainable_variables
            if not variable.overwrite_with_gradient
        ]

    def _whole(self) -> tuple[Any, Any, Any]:
        x, y, weights = (*self.make_data(self.num_rows), None)[:3]
        return x, y, weights

    def _compiled(
        self, make_model: Callable[[], keras.Model], optimizer: Any, seed: int
    ) -> keras.Model:
        keras.utils.set_random_seed(seed)
        model = make_model()
        loss: Any = self.loss(reduction=self.reduction)
        targets = self._whole()[1]
        if isinstance(targets, dict):
            loss = {
                name: self.loss(reduction=self.reduction) for name in targets
            }
        metrics = [
            metric if isinstance(metric, str) else metric(name=metric.__name__)
            for metric in self.metrics
        ]
        model.compile(
            optimizer,
            loss,
            metrics=metrics or None,
            weighted_metrics=["mse"] if metrics else None,
            **self.compile,
        )
        return model


def _taken(structure: Any, rows: Any) -> Any:
    return keras.tree.map_structure(
        lambda array: keras.ops.convert_to_tensor(array[rows]), structure
    )
