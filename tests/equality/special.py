"""Cases with loops, models or collectives of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import contrastive
import keras
import numpy as np
import stateful_layers

import hvd_keras as hvd
from equality import data
from equality.fits import Fit, Trained, momentum

NUM_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """A loss over pairs of rows of all ranks."""

    form: str

    def alone(self) -> Trained:
        return Trained(contrastive.one_process(_module_of_collectives()))

    def ours(self) -> Trained:
        return Trained(
            contrastive.all_ranks(self.form, module=_module_of_collectives())
        )


def _module_of_collectives() -> str:
    backend = keras.backend.backend()
    return "hvd_keras" + {"tensorflow": ""}.get(backend, f".{backend}")


class Gan(keras.Model):
    """Has no `call`: its parts take turns, each with its optimizer."""

    def __init__(self, make_optimizer: Callable[[], Any]) -> None:
        super().__init__()
        self.parts = [
            keras.Sequential([keras.layers.Dense(1)]) for _ in range(2)
        ]
        self.of_first, self.of_second = make_optimizer(), make_optimizer()

    def train_step(self, batch: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y = batch
        pairs = zip(self.parts, (self.of_first, self.of_second), strict=True)
        for part, optimizer in pairs:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(x) + part(-2 * x) - y) ** 2)
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class GanOfAllRanks:
    """Two optimizers; weights that the first batch makes."""

    backends = ("tensorflow",)

    def alone(self) -> Trained:
        return self._trained(momentum, seed=3, rank=0, size=1)

    def ours(self) -> Trained:
        return self._trained(
            lambda: hvd.DistributedOptimizer(momentum()),
            3 + hvd.rank(),
            hvd.rank(),
            hvd.size(),
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback()],
        )

    def _trained(
        self,
        make_optimizer: Callable[[], Any],
        seed: int,
        rank: int,
        size: int,
        **options: Any,
    ) -> Trained:
        keras.utils.set_random_seed(seed)
        model = Gan(make_optimizer)
        model.compile()
        x, y = (_dealt(a, rank, size) for a in _batches())
        batch_size = len(x) // NUM_STEPS
        model.fit(x, y, batch_size, shuffle=False, verbose=0, **options)
        slots = [*model.of_first.variables, *model.of_second.variables]
        values = [np.asarray(v) for v in [*model.weights, *slots]]
        return Trained(values)


class Loop:
    """A loop of one's own, with a tape."""

    backends = ("tensorflow",)

    def alone(self) -> Trained:
        import tensorflow as tf

        return self._trained(tf.GradientTape, momentum(), 0, 1)

    def ours(self) -> Trained:
        import tensorflow as tf

        return self._trained(
            lambda: hvd.DistributedGradientTape(tf.GradientTape()),
            momentum(),
            hvd.rank(),
            hvd.size(),
        )

    def _trained(
        self, make_tape: Any, optimizer: Any, rank: int, size: int
    ) -> Trained:
        import tensorflow as tf

        keras.utils.set_random_seed(3)
        model = data.dense_model()
        x, y = (_dealt(a, rank, size) for a in _batches())

        @tf.function
        def step(x: Any, y: Any) -> None:
            with make_tape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        batch_size = len(x) // NUM_STEPS
        for first in range(0, len(x), batch_size):
            rows = slice(first, first + batch_size)
            step(x[rows], y[rows])
        return Trained(model.get_weights())


@dataclasses.dataclass(frozen=True)
class Collective:
    """The gradient of the sum of the ranks' losses through a collective.

    One process computes what the collective does of the ranks' tensors.

    Args:
        kind: Which collective.
    """

    kind: str
    backends: tuple[str, ...] = ("tensorflow",)

    def alone(self) -> Trained:
        import tensorflow as tf

        size = hvd.size()
        mine = [tf.Variable(_values(rank, size)) for rank in range(size)]
        with tf.GradientTape() as tape:
            if self.kind == "broadcast":
                outputs = [mine[0] * 1.0 for _ in mine]
            elif self.kind == "reducescatter":
                outputs = tf.split(tf.add_n(mine), size)
            else:
                outputs = [tf.concat(mine, 0) for _ in mine]
            loss = tf.add_n([self._loss(o, r) for r, o in enumerate(outputs)])
        gradients = tape.gradient(loss, mine, unconnected_gradients="zero")
        return Trained([np.stack([g.numpy() for g in gradients])])

    def ours(self) -> Trained:
        import tensorflow as tf

        mine = tf.Variable(_values(hvd.rank(), hvd.size()))
        with tf.GradientTape() as tape:
            if self.kind == "broadcast":
                output = hvd.broadcast(mine, 0)
            elif self.kind == "reducescatter":
                output = hvd.reducescatter(mine, op=hvd.Sum)
            else:
                output = hvd.allgather(mine)
            loss = self._loss(output, hvd.rank())
        gradient = tape.gradient(loss, mine).numpy()
        return Trained([np.stack(hvd.allgather_object(gradient))])

    def _loss(self, output: Any, rank: int) -> Any:
        import tensorflow as tf

        return tf.reduce_sum(output**2 * (rank + 1.0))


@dataclasses.dataclass(frozen=True)
class InStrategy:
    """The program of one process, in the scope of `hvd.Strategy`."""

    fit: Fit
    backends: tuple[str, ...] = ("tensorflow",)

    def alone(self) -> Trained:
        return self.fit.alone()

    def ours(self) -> Trained:
        with hvd.Strategy().scope():
            return self.fit.alone()


class IntegerSlices:
    """The average of sparse integers is that of the dense ones."""

    backends = ("tensorflow",)

    def alone(self) -> Trained:
        size = hvd.size()
        total = sum(self._dense(rank) for rank in range(size))
        return Trained([np.asarray(total // size)])

    def ours(self) -> Trained:
        import tensorflow as tf

        rank = hvd.rank()
        slices = tf.IndexedSlices(
            tf.constant([[5 + rank], [3 * rank]]), tf.constant([1, rank % 2])
        )
        reduced = hvd.allreduce(slices, op=hvd.Average)
        dense = tf.math.unsorted_segment_sum(reduced.values, reduced.indices, 2)
        return Trained([dense.numpy()])

    def _dense(self, rank: int) -> np.ndarray:
        dense = np.zeros((2, 1), np.int32)
        dense[1] += 5 + rank
        dense[rank % 2] += 3 * rank
        return dense


class LocalLayers:
    """Layers that each rank trains alone, with moving statistics.

    All layers are local here: a rank does what it does without the others.
    """

    def alone(self) -> Trained:
        values = [
            self._trained(momentum(), rank, hvd.size())
            for rank in range(hvd.size())
        ]
        return Trained([np.stack(each) for each in zip(*values, strict=True)])

    def ours(self) -> Trained:
        mine = self._trained(None, hvd.rank(), hvd.size())
        values = hvd.allgather_object(mine)
        return Trained([np.stack(each) for each in zip(*values, strict=True)])

    def _trained(self, optimizer: Any, rank: int, size: int) -> list[Any]:
        keras.utils.set_random_seed(3)
        model = data.normalized_model()
        callbacks: list[Any] = []
        if optimizer is None:
            optimizer = hvd.PartialDistributedOptimizer(
                momentum(),
                local_layers=model.layers,
                scale_local_gradients=False,
            )
            broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(
                local_variables=model.weights
            )
            callbacks = [broadcast]
        model.compile(optimizer, "mse")
        x, y = (_dealt(a, rank, size) for a in _batches())
        batch_size = len(x) // NUM_STEPS
        options: dict[str, Any] = {"callbacks": callbacks, "verbose": 0}
        model.fit(x, y, batch_size, shuffle=False, **options)
        return model.get_weights()


class StatesOfLayers:
    """Counts, sums, centres and moments, of which the user says what they are.

    Those of a rank are equal to one process at the end of an epoch.
    """

    def alone(self) -> Trained:
        return self._trained(alone=True)

    def ours(self) -> Trained:
        return self._trained()

    def _trained(self, **options: bool) -> Trained:
        said = {"sums": "sum", "seen": "sum", "centre": "mean"}
        layers = [stateful_layers.Stateful(**said), stateful_layers.Running()]
        hvd.set_aggregation(layers[1], stateful_layers.merged)
        layers[0].build((None, 4))
        hvd.set_aggregation(layers[0].queue, "own")
        stateful_layers.trained(keras.Sequential(layers), **options)
        values = [each.numpy() for layer in layers for each in layer.weights]
        del values[3]  # the queue
        return Trained([np.asarray(value) for value in values])


class Adapted:
    """A `Normalization` that each rank has adapted to data of its own."""

    def alone(self) -> Trained:
        return self._trained(momentum(), 0, 1, rows_of=0)

    def ours(self) -> Trained:
        return self._trained(
            hvd.DistributedOptimizer(momentum()),
            hvd.rank(),
            hvd.size(),
            rows_of=hvd.rank(),
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback()],
        )

    def _trained(
        self, optimizer: Any, rank: int, size: int, rows_of: int, **options: Any
    ) -> Trained:
        keras.utils.set_random_seed(3)
        x, y = _batches()
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, 1)
        normalization = keras.layers.Normalization()
        normalization.adapt(x[rows_of * 10 : rows_of * 10 + 10])
        model = keras.Sequential(
            [keras.Input((5,)), normalization, keras.layers.Dense(1)]
        )
        model.compile(optimizer, "mse")
        x, y = (_dealt(a, rank, size) for a in _batches())
        batch_size = len(x) // NUM_STEPS
        model.fit(x, y, batch_size, shuffle=False, verbose=0, **options)
        return Trained(model.get_weights()[-2:])


def _batches() -> list[np.ndarray]:
    """Returns arrays of the shape [steps, rows, values]."""
    num_rows = NUM_STEPS * data.GLOBAL_BATCH
    return [
        array.reshape(NUM_STEPS, data.GLOBAL_BATCH, -1)
        for array in data.rows(num_rows)
    ]


def _dealt(batches: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Returns the rows of a rank, of all batches."""
    share = batches.shape[1] // size
    mine = batches[:, rank * share : (rank + 1) * share]
    return mine.reshape(-1, batches.shape[-1])


def _values(rank: int, size: int) -> np.ndarray:
    generator = np.random.default_rng(11 + rank)
    return generator.normal(size=(2 * size, 3)).astype(np.float32)


CASES = {
    "contrastive": Contrastive("loss_of_all"),
    "contrastive_own_rows": Contrastive("loss_of_own_rows"),
    "allgather": Collective("allgather"),
    "broadcast": Collective("broadcast"),
    "reducescatter": Collective("reducescatter"),
    "integer_slices": IntegerSlices(),
    "gan": GanOfAllRanks(),
    "loop": Loop(),
    "strategy": InStrategy(Fit()),
    "strategy_mask": InStrategy(Fit(data.sequence_model, data.sequences)),
    "strategy_weights": InStrategy(
        Fit(make_data=data.weighted_rows, reduction="mean_with_sample_weight")
    ),
    "local_layers": LocalLayers(),
    "adapted": Adapted(),
    "states": StatesOfLayers(),
}

TITLES = {
    "contrastive": "contrastive loss over `allgather`",
    "contrastive_own_rows": "the same, each rank its rows",
    "allgather": "gradient of `allgather`",
    "broadcast": "gradient of `broadcast`",
    "reducescatter": "gradient of `reducescatter`",
    "integer_slices": "average of integer `IndexedSlices`",
    "gan": "GAN with two optimizers, without `call`",
    "loop": "`DistributedGradientTape` in a `tf.function`",
    "strategy": "`hvd.Strategy`, 53 rows",
    "strategy_mask": "`hvd.Strategy`, 53 rows, mask",
    "strategy_weights": "`hvd.Strategy`, `mean_with_sample_weight`",
    "local_layers": "local layers and statistics (as each rank alone)",
    "adapted": "`Normalization` adapted on shares",
    "states": "counts, sums, centres and moments, `set_aggregation`",
}
