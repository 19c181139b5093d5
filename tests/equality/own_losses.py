"""Cases whose losses, steps or optimizers are the user's, or count no rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from equality import data
from equality.fits import EPOCHS, Fit, Trained, momentum

ops = keras.ops
UNEVEN = 2 * data.GLOBAL_BATCH + 5
FEW = 2 * data.GLOBAL_BATCH + 1  # some ranks have no row of the rest


def no_loss(reduction: str) -> None:
    return None


def vector_loss(reduction: str) -> Any:
    return keras.losses.MeanSquaredError(reduction=None)


def row_loss(reduction: str) -> Any:
    def squares(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred), axis=-1)

    return squares


def scalar_loss(reduction: str) -> Any:
    def mean_of_rows(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred))

    return mean_of_rows


def _hidden() -> tuple[Any, Any]:
    inputs = keras.Input((5,))
    return inputs, keras.layers.Dense(4, activation="tanh")(inputs)


class OwnMean(keras.Model):
    """Does not call Keras's `compute_loss`, as its guides say."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(
            ops.abs(y_pred)
        )


class TwoViews(keras.Model):
    """A loss of twice as many rows as the batch has."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        other = self(-x, training=training)
        return super().compute_loss(
            x,
            ops.concatenate([y, -y]),
            ops.concatenate([y_pred, other]),
            None,
            training,
        )


class Labelled(keras.Model):
    """Some rows have labels."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        import tensorflow as tf

        is_labelled = x[:, 0] > 0.3
        return super().compute_loss(
            x,
            tf.boolean_mask(y, is_labelled),
            tf.boolean_mask(y_pred, is_labelled),
            None,
            training,
        )


class OwnStep(keras.Model):
    """Takes a mean in `train_step`, for (rows, labels)."""

    def train_step(self, *arguments: Any) -> Any:
        backend = keras.backend.backend()
        if backend == "jax":
            return self._jax_step(*arguments)
        rows, labels = arguments[0]
        variables = self.trainable_variables
        if backend == "torch":
            self.zero_grad()
            loss = self._mean(labels, self(rows, training=True))
            loss.backward()
            gradients = [v.value.grad for v in variables]
            import torch

            with torch.no_grad():
                self.optimizer.apply(gradients, variables)
            return {"loss": loss}
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self._mean(labels, self(rows, training=True))
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}

    def _mean(self, labels: Any, outputs: Any) -> Any:
        return ops.mean(ops.square(labels - outputs))

    def _jax_step(self, state: Any, batch: Any) -> Any:
        import jax

        rows, labels = batch
        trained, others, slots, metrics = state

        def loss_of(trained: Any) -> Any:
            outputs, _ = self.stateless_call(trained, others, rows)
            return self._mean(labels, outputs)

        loss, gradients = jax.value_and_grad(loss_of)(trained)
        trained, slots = self.optimizer.stateless_apply(
            slots, gradients, trained
        )
        return {"loss": loss}, (trained, others, slots, metrics)


class VectorStep(OwnStep):
    """Differentiates a loss a row, as TensorFlow allows."""

    def _mean(self, labels: Any, outputs: Any) -> Any:
        return 0.03 * keras.losses.mean_absolute_error(labels, outputs)


class PenaltyStep(OwnStep):
    """Has a gradient of its inputs in its loss."""

    def _mean(self, labels: Any, outputs: Any) -> Any:
        import tensorflow as tf

        inputs = tf.ones([4, 5])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            each = self(inputs)
        slopes = tape.gradient(each, inputs)
        penalty = ops.mean(ops.square(slopes))
        return super()._mean(labels, outputs) + 0.1 * penalty


class OwnTest(OwnStep):
    """Updates metrics by itself, in (rows, labels)."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.mae]

    def _logs(self, labels: Any, outputs: Any) -> Any:
        self.tracker.update_state(self._mean(labels, outputs))
        self.mae.update_state(labels, outputs)
        # Under another name than its metric's, as in many programs.
        return {"total": self.tracker.result(), "mae": self.mae.result()}

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        rows, labels = data
        return self._logs(labels, self(rows))

    def test_step(self, data: Any) -> Any:
        rows, labels = data
        return self._logs(labels, self(rows))


def own(cls: type) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        inputs, hidden = _hidden()
        return cls(inputs, keras.layers.Dense(1)(hidden))

    return make


class Adds(keras.layers.Layer):
    """Adds a loss: a mean over the rows, or a value a row."""

    def __init__(self, is_vector: bool) -> None:
        super().__init__()
        self._is_vector = is_vector

    def call(self, inputs: Any) -> Any:
        each = ops.sum(ops.square(inputs), axis=-1)
        self.add_loss(0.01 * (each if self._is_vector else ops.mean(each)))
        return inputs


def adding(is_vector: bool) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        inputs, hidden = _hidden()
        hidden = Adds(is_vector)(hidden)
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    return make


def active_model() -> keras.Model:
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(
        4, activation="tanh", activity_regularizer=keras.regularizers.L2(0.3)
    )(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class Centralized(keras.optimizers.SGD):
    """Changes gradients in `apply`."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        changed = [
            g - ops.mean(g, axis=0, keepdims=True)
            if len(g.shape) > 1
            else ops.clip(g, -0.05, 0.05)
            for g in grads
        ]
        return super().apply(changed, trainable_variables)


class Signed(keras.optimizers.SGD):
    """Changes gradients in `apply_gradients`."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = [
            (ops.sign(g) * ops.sqrt(ops.abs(g)), v) for g, v in grads_and_vars
        ]
        return super().apply_gradients(pairs)


@dataclasses.dataclass(frozen=True)
class More(Fit):
    """A fit with further arguments, and steps after it.

    Args:
        fit: Further arguments of `fit`.
        validates: Whether `fit` validates.
        steps_after: Batches for `train_on_batch` after `fit`.
    """

    fit: dict[str, Any] = dataclasses.field(default_factory=dict)
    validates: bool = False
    steps_after: int = 0
    # It calls no method of Keras, so none of these would count.
    by_ddp = None

    def alone(self) -> Trained:
        model = self._compiled(self.make_model, self.make_optimizer(), seed=3)
        x, y, _ = self._whole()
        held_out = (x[:FEW], y[:FEW]) if self.validates else None
        logs = model.fit(
            x,
            y,
            data.GLOBAL_BATCH,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            validation_data=held_out,
            validation_batch_size=data.GLOBAL_BATCH,
            **self.fit,
        ).history
        for step in range(self.steps_after):
            rows = slice(step * 12, (step + 1) * 12)
            model.train_on_batch(x[rows], y[rows])
        return Trained(model.get_weights(), logs)

    def ours(self) -> Trained:
        optimizer = hvd.DistributedOptimizer(self.make_optimizer())
        model = self._compiled(self.make_model, optimizer, seed=3)
        batch_size = data.GLOBAL_BATCH // hvd.size()
        x, y, _ = self._whole()

        def share(num_rows: int) -> Any:
            pair = x[:num_rows], y[:num_rows]
            return hvd.shard(pair, batch_size=batch_size, policy=self.policy)

        logs = model.fit(
            share(len(x)),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[hvd.callbacks.MetricAverageCallback()],
            validation_data=share(FEW) if self.validates else None,
            **self.fit,
        ).history
        for step in range(self.steps_after):
            mine = np.array_split(
                np.arange(step * 12, (step + 1) * 12), hvd.size()
            )
            rows = mine[hvd.rank()]
            model.train_on_batch(x[rows], y[rows])
        return Trained(model.get_weights(), logs)


class Molecules:
    """Rows of x that are atoms, of which each molecule has its own number."""

    backends = ("tensorflow",)

    def alone(self) -> Trained:
        return self._trained(momentum(), self._ragged().batch(12))

    def ours(self) -> Trained:
        share = hvd.shard(
            self._ragged(), batch_size=12 // hvd.size(), policy="split"
        )
        average = hvd.callbacks.MetricAverageCallback()
        optimizer = hvd.DistributedOptimizer(momentum())
        return self._trained(optimizer, share, callbacks=[average])

    def _ragged(self) -> Any:
        import tensorflow as tf

        generator = np.random.default_rng(3)
        lengths = np.concatenate(
            [np.sort(generator.integers(1, 9, 12)) for _ in range(3)]
        )
        atoms = tf.RaggedTensor.from_row_lengths(
            generator.normal(size=(lengths.sum(), 4)).astype("f4"), lengths
        )
        y = generator.normal(size=(len(lengths), 1)).astype("f4")
        return tf.data.Dataset.from_tensor_slices((atoms, y))

    def _trained(self, optimizer: Any, batches: Any, **options: Any) -> Trained:
        import tensorflow as tf

        def merged(atoms: Any, y: Any) -> Any:
            return (atoms.flat_values, atoms.value_rowids()), y

        keras.utils.set_random_seed(3)
        atoms = keras.Input((4,))
        ids = keras.Input((), dtype="int64")
        hidden = keras.layers.Dense(5, activation="tanh")(atoms)
        pooled = keras.layers.Lambda(
            lambda both: tf.math.segment_sum(*both), output_shape=(5,)
        )([hidden, ids])
        model = keras.Model([atoms, ids], keras.layers.Dense(1)(pooled))
        model.compile(optimizer, "mse", metrics=["mae"])
        batches = batches.map(merged)
        logs = model.fit(batches, epochs=EPOCHS, verbose=0, **options).history
        logs["evaluate"] = model.evaluate(
            batches, return_dict=True, verbose=0, **options
        )
        return Trained(model.get_weights(), logs)


@dataclasses.dataclass(frozen=True)
class Mapped:
    """Batches to which `map` adds what has other rows.

    Args:
        form: "table" adds a table first in x; "words" has words, of which each
            row has its own number, and targets of words and of rows.
    """

    form: str
    num_rows: int
    backends: tuple[str, ...] = ("tensorflow",)

    def alone(self) -> Trained:
        return self._trained(momentum(), self._rows().batch(data.GLOBAL_BATCH))

    def ours(self) -> Trained:
        batch_size = data.GLOBAL_BATCH // hvd.size()
        average = hvd.callbacks.MetricAverageCallback()
        return self._trained(
            hvd.DistributedOptimizer(momentum()),
            hvd.shard(self._rows(), batch_size=batch_size),
            callbacks=[average],
        )

    def _rows(self) -> Any:
        import tensorflow as tf

        x, y = data.rows(self.num_rows)
        lengths = np.arange(self.num_rows) % data.GLOBAL_BATCH // 4 + 1
        words = tf.RaggedTensor.from_row_lengths(
            np.linspace(-1, 1, lengths.sum(), dtype=np.float32), lengths
        )
        return tf.data.Dataset.from_tensor_slices(((x, words), y))

    def _trained(self, optimizer: Any, batches: Any, **options: Any) -> Trained:
        import tensorflow as tf

        def mapped(x: Any, y: Any, *marks: Any) -> Any:
            rows, words = x
            if self.form == "table":
                return {"a": tf.ones([7, 4]), "rows": rows}, y, *marks
            words = words.flat_values[:, None]
            return {"words": words, "rows": rows}, {"words": words, "rows": y}

        keras.utils.set_random_seed(3)
        inputs = {"rows": keras.Input((5,), name="numbers")}
        hidden = keras.layers.Dense(4, activation="tanh")(inputs["rows"])
        outputs: Any = keras.layers.Dense(1, name="rows")(hidden)
        metrics: Any = ["mae"]
        if self.form == "table":
            inputs["a"] = keras.Input((4,), name="a")
        else:
            inputs["words"] = keras.Input((1,), name="given")
            of_words = keras.layers.Dense(3, "tanh")(inputs["words"])
            of_words = keras.layers.Dense(1, name="words")(of_words)
            outputs = {"words": of_words, "rows": outputs}
            metrics = {"words": "mae", "rows": "mse"}
        model = keras.Model(inputs, outputs)
        loss: Any = "mse"
        if self.form == "words":
            loss = {"words": "mse", "rows": "mae"}
        model.compile(optimizer, loss, metrics=metrics)
        batches = batches.map(mapped)
        logs = model.fit(batches, epochs=EPOCHS, verbose=0, **options).history
        logs["evaluate"] = model.evaluate(
            batches, return_dict=True, verbose=0, **options
        )
        return Trained(model.get_weights(), logs)


TENSORFLOW = ("tensorflow",)
plain: dict[str, Any] = {"loss": no_loss, "metrics": ()}

CASES: dict[str, Any] = {
    "atoms": Molecules(),
    "table_first": Mapped("table", UNEVEN),
    "words_and_rows": Mapped("words", 2 * data.GLOBAL_BATCH),
    "two_views": Fit(own(TwoViews), metrics=()),
    "labelled": Fit(
        own(Labelled),
        metrics=(),
        num_rows=2 * data.GLOBAL_BATCH,
        backends=TENSORFLOW,
    ),
    "own_mean": Fit(own(OwnMean), **plain),
    "own_mean_few": Fit(own(OwnMean), num_rows=FEW, **plain),
    "own_step": More(own(OwnStep), **plain),
    "own_step_few": More(own(OwnStep), num_rows=FEW, **plain),
    "own_test": More(
        own(OwnTest),
        validates=True,
        backends=("tensorflow", "torch"),
        **plain,
    ),
    "own_test_few": More(
        own(OwnTest),
        num_rows=FEW,
        validates=True,
        backends=("tensorflow", "torch"),
        **plain,
    ),
    "vector_step": More(own(VectorStep), backends=TENSORFLOW, **plain),
    "vector_step_few": More(
        own(VectorStep), num_rows=FEW, backends=TENSORFLOW, **plain
    ),
    "penalty_step": More(own(PenaltyStep), backends=TENSORFLOW, **plain),
    "add_loss": Fit(adding(False)),
    "add_vector": Fit(adding(True)),
    "activity": Fit(active_model),
    "vector_loss": Fit(loss=vector_loss, backends=TENSORFLOW),
    "vector_loss_few": Fit(loss=vector_loss, num_rows=FEW, backends=TENSORFLOW),
    "vector_loss_pad": Fit(loss=vector_loss, policy="pad", backends=TENSORFLOW),
    "row_loss": Fit(loss=row_loss),
    "scalar_loss_few": Fit(loss=scalar_loss, num_rows=FEW),
    "centralized": Fit(make_optimizer=lambda: Centralized(0.05)),
    "signed": Fit(make_optimizer=lambda: Signed(0.05)),
    "class_weight": More(
        data.classifier,
        data.labelled_rows,
        num_rows=FEW,
        metrics=("accuracy",),
        loss=keras.losses.BinaryCrossentropy,
        fit={"class_weight": {0: 0.5, 1: 3.0}},
    ),
    "validation": More(loss=scalar_loss, validates=True),
    "validation_rows": More(num_rows=FEW, validates=True),
    "steps_after_fit": More(steps_after=2),
}

TITLES = {
    "atoms": "the rows of x are atoms, those of y molecules",
    "table_first": "a table stands before the rows of x, 53 rows",
    "words_and_rows": "targets of words and of rows, of unequal number",
    "two_views": "`compute_loss` of two views of each row, 53 rows",
    "labelled": "`compute_loss` of the rows with labels",
    "own_mean": "`compute_loss` without `super()`, 53 rows",
    "own_mean_few": "`compute_loss` without `super()`, 49 rows",
    "own_step": "`ops.mean` in `train_step`, 53 rows",
    "own_step_few": "`ops.mean` in `train_step`, 49 rows",
    "own_test": "metrics updated by one's own steps, 53 rows",
    "own_test_few": "metrics updated by one's own steps, 49 rows",
    "vector_step": "gradient of a loss a row in `train_step`, 53 rows",
    "vector_step_few": "gradient of a loss a row in `train_step`, 49 rows",
    "penalty_step": "gradient of a gradient in `train_step`, 53 rows",
    "add_loss": "`add_loss` of a mean, 53 rows",
    "add_vector": "`add_loss` of a value a row, 53 rows",
    "activity": "activity regularizer, 53 rows",
    "vector_loss": "`reduction=None`, 53 rows",
    "vector_loss_few": "`reduction=None`, 49 rows",
    "vector_loss_pad": '`reduction=None`, 53 rows, `policy="pad"`',
    "row_loss": "a loss function of one's own, 53 rows",
    "scalar_loss_few": "one that returns a scalar, 49 rows",
    "centralized": "optimizer that changes gradients in `apply`",
    "signed": "optimizer that changes gradients in `apply_gradients`",
    "class_weight": "`class_weight`, 49 rows",
    "validation": "a scalar loss with validation",
    "validation_rows": "49 rows with validation",
    "steps_after_fit": "`train_on_batch` after `fit`, 53 rows",
}
