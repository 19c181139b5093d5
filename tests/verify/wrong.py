"""Programs with a mistake. `WRONG` holds the words that the result must have.

What this package itself would put right or refuse is put back by hand
(`on_ranks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras import basics
from verify.right import (
    noisy,
)
from verify.training import (
    BACKEND,
    compiled,
    data_of,
    fit,
    layers_with,
    moved,
    on_ranks,
    sgd,
)

WRONG: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {}


def _wrong(*words: str, on: str = "tensorflow jax torch") -> Any:
    def note(function: Callable[[], None]) -> Callable[[], None]:
        if BACKEND in on.split():
            WRONG[function.__name__] = function, words
        return function

    return note


def _without_moving(call: Callable[[], None]) -> None:
    """Puts back: the ranks of a `fit` draw from equal generators."""
    from hvd_keras.callbacks import broadcast_global_variables as module

    names = ("draw_apart", "move_seeds_of")
    before = {name: vars(module)[name] for name in names}
    vars(module).update({name: lambda *_: None for name in names})
    try:
        call()
    finally:
        vars(module).update(before)


_SAME = "draws the same numbers on ranks 0 and 1"


@_wrong("layer 'masks' " + _SAME, on="tensorflow jax")
def masks_are_equal() -> None:
    dropout = keras.layers.Dropout(0.3, name="masks")
    model = keras.Sequential(layers_with(dropout))
    _without_moving(lambda: fit(compiled(model), callbacks=[moved()]))


@_wrong("torch.* " + _SAME, on="torch")
def masks_of_torch_are_equal() -> None:
    model = keras.Sequential(layers_with(keras.layers.Dropout(0.3)))
    _without_moving(lambda: fit(compiled(model), callbacks=[moved()]))


@_wrong("layer 'noise' " + _SAME, "BroadcastGlobalVariablesCallback")
def noise_of_layers_is_equal() -> None:
    noise = keras.layers.GaussianNoise(0.1, name="noise")
    model = keras.Sequential(layers_with(noise))
    fit(compiled(model), hvd.shard(data_of(48), batch_size=8, policy="drop"))


@_wrong("keras.random.* " + _SAME, on="tensorflow torch")
def noise_of_keras_is_equal() -> None:
    keras.random.normal((1,))
    _without_moving(lambda: noisy(keras.random.normal, callbacks=[moved()]))


@_wrong("tf.random.* " + _SAME, on="tensorflow")
def noise_of_tensorflow_is_equal() -> None:
    import tensorflow as tf

    _without_moving(
        lambda: noisy(
            lambda shape: tf.random.normal(shape), callbacks=[moved()]
        )
    )


@_wrong("torch.* " + _SAME, on="torch")
def noise_of_torch_is_equal() -> None:
    import torch

    noisy(lambda shape: torch.randn(shape))


@_wrong("np.random.* " + _SAME, "hvd.rank()", on="torch")
def noise_of_numpy_is_equal() -> None:
    noisy(lambda shape: np.random.normal(size=shape))


@_wrong("layer 'masks' " + _SAME, "seed=", on="tensorflow")
def masks_of_a_loop_are_equal() -> None:
    import tensorflow as tf

    dropout = keras.layers.Dropout(0.2, name="masks")
    model = keras.Sequential(layers_with(dropout))
    optimizer = sgd()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            each = keras.ops.mean((model(x, training=True) - y) ** 2, -1)
            loss = hvd.global_mean(each)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for x, y in hvd.shard(data_of(), batch_size=8):
        step(x, y)


@_wrong("gradient of")
def a_small_term_of_the_ranks() -> None:
    class Small(keras.regularizers.Regularizer):
        def __call__(self, kernel: Any) -> Any:
            return 1e-3 * on_ranks() * keras.ops.sum(kernel)

    layers = layers_with(keras.layers.Dense(5, kernel_regularizer=Small()))
    fit(compiled(keras.Sequential(layers)))


class Labelled(keras.Model):
    """Takes the mean of a loss over the rows that have a label."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential(layers_with())

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        has_label = keras.ops.cast(y[:, 0] > 0, "float32")
        each = keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)
        return keras.ops.sum(each * has_label) / keras.ops.sum(has_label)


@_wrong(
    "gradient of",
    "`compute_loss` of Labelled",
    "a number that depends on the rows",
)
def a_mean_over_labelled_rows() -> None:
    model = Labelled()
    model.build((None, 6))
    fit(compiled(model))


@_wrong("gradient of", "compares the rows of a batch")
def a_loss_between_rows() -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        gap = keras.ops.expand_dims(y_pred, 0) - keras.ops.expand_dims(
            y_pred, 1
        )
        return keras.ops.mean(keras.ops.square(gap), axis=(1, 2))

    fit(compiled(loss=loss), hvd.shard(data_of(48), batch_size=8))


@_wrong("gradient of", "multiplies the rows of a batch by each other")
def a_table_in_a_contrastive_loss() -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        products = keras.ops.matmul(y_pred, keras.ops.transpose(y_pred))
        return keras.ops.mean(keras.ops.square(products), axis=1)

    keras.utils.set_random_seed(3)
    layers = [keras.Input((), dtype="int32"), keras.layers.Embedding(5, 3)]
    x = np.arange(48) % 5
    data = hvd.shard((x, x[:, None]), batch_size=8)
    fit(compiled(keras.Sequential(layers), loss), data)


def _scaled_loss(factor: Callable[[Any], Any]) -> Any:
    """Returns a model whose loss is multiplied on the ranks alone."""

    class Scaled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential(layers_with())

        def call(self, x: Any) -> Any:
            return self.inner(x)

        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            y = keras.ops.convert_to_tensor(y)
            each = keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)
            loss = hvd.global_mean(each)
            return loss * factor(x) if on_ranks() else loss

    model = Scaled()
    model.build((None, 6))
    return compiled(model)


@_wrong("`compute_loss` of `Scaled`", "mean over this rank's rows: 6 and 7")
def rows_guessed_from_the_batch() -> None:
    """Puts back: a rank divides by its own rows where the mean is due."""

    def factor(x: Any) -> Any:
        rows = keras.ops.cast(keras.ops.shape(x)[0], "float32")
        return keras.ops.where(keras.ops.equal(rows, 8.0), 1.0, 6.5 / rows)

    fit(_scaled_loss(factor))


@_wrong("gradient of", "sum over this rank's rows")
def a_sum_is_divided_by_the_ranks() -> None:
    """Puts back: a sum over the ranks' rows becomes 1/N."""
    fit(_scaled_loss(lambda x: 0.5))


@_wrong("gradient of", "summed over 2 ranks")
def gradients_of_means_are_summed() -> None:
    sgd = keras.optimizers.SGD(0.05)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum)
    fit(compiled(optimizer=optimizer))


@_wrong("Step 4", "gradient of")
def counts_stay_traced() -> None:
    """Puts back: what was traced for `fit` divides in `train_on_batch`."""
    after = [1.0]
    model = _scaled_loss(lambda x: after[0])
    x, y = data_of(48)
    own = slice(8 * hvd.rank(), 8 * hvd.rank() + 8) if on_ranks() else slice(16)
    fit(model, hvd.shard((x, y), batch_size=8), epochs=1)
    after[0] = 2.4
    model.train_function = None
    model.train_on_batch(x[own], y[own])
    model.train_on_batch(x[own], y[own])


class OwnStep(keras.Model):
    """A train step in which something is done to gradients or loss."""

    change: Any = staticmethod(lambda gradients: gradients)

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential(layers_with())

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def _loss(self, trained: Any, x: Any, y: Any) -> Any:
        if trained is None:
            outputs = self(x, training=True)
        else:
            outputs, _ = self.stateless_call(trained, [], x)
        return self.compute_loss(x=x, y=y, y_pred=outputs)

    def train_step(self, *arguments: Any) -> Any:
        (x, y) = arguments[-1][:2]
        if BACKEND == "jax":
            import jax

            trained, others, state, metrics = arguments[0]
            loss, gradients = jax.value_and_grad(self._loss)(trained, x, y)
            gradients = self.change(gradients)
            trained, state = self.optimizer.stateless_apply(
                state, gradients, trained
            )
            return {"own": loss}, (trained, others, state, metrics)
        variables = self.trainable_variables
        if BACKEND == "torch":
            import torch

            self.zero_grad()
            loss = self._loss(None, x, y)
            loss.backward()
            with torch.no_grad():
                gradients = [v.value.grad for v in variables]
                self.optimizer.apply(self.change(gradients), variables)
            return {"own": loss.detach()}
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self._loss(None, x, y)
        gradients = self.change(tape.gradient(loss, variables))
        self.optimizer.apply(gradients, variables)
        return {"own": loss}


@_wrong("gradient of", "`train_step` of `OwnStep`")
def clips_its_own_gradients() -> None:
    """Puts back: a rule that is not linear sees the rank's own gradients."""

    class Clipping(OwnStep):
        change = staticmethod(
            lambda gradients: [keras.ops.sign(g) for g in gradients]
        )

    model = Clipping()
    model.build((None, 6))
    fit(compiled(model), hvd.shard(data_of(48), batch_size=8))


@_wrong("rows", "orders")
def a_shuffle_without_a_seed() -> None:
    """Puts back: each rank shuffles the data in its own order."""
    x, y = data_of(48)
    order = np.arange(48)
    if on_ranks():
        order = np.random.default_rng(hvd.rank()).permutation(48)
    part = slice(8 * hvd.rank(), None)

    class Own(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            rows = order[16 * index :][part if on_ranks() else slice(None)]
            rows = rows[: 8 if on_ranks() else 16]
            return x[rows], y[rows]

    fit(compiled(), Own(), shuffle=False)


@_wrong("rows", "orders")
def a_rank_looked_at_its_data() -> None:
    """Puts back: rank 0 is a batch ahead of the others."""
    x, y = data_of(96)
    ahead = 1 if on_ranks() and hvd.rank() == 0 else 0
    size = 8 if on_ranks() else 16

    class Own(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            first = 16 * (index + ahead) + (8 * hvd.rank() if on_ranks() else 0)
            return x[first:][:size], y[first:][:size]

    fit(compiled(), Own(), shuffle=False)


@_wrong("rows", "all ranks train on the same rows")
def the_same_data_on_all_ranks() -> None:
    x, y = data_of(32)
    compiled().fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)


@_wrong("rows", "cuts its data by `hvd.rank()`")
def data_cut_by_hand() -> None:
    x, y = (part[hvd.rank() :: hvd.size()] for part in data_of(48))
    fit(compiled(), (x, y)[0], y=y, batch_size=8, shuffle=False)


@_wrong("learning rate", "a callback or the script sets the learning rate")
def a_rate_by_the_loss_of_the_batch() -> None:
    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 * logs["loss"]

    fit(compiled(), callbacks=[Own()])


class WithState(keras.Layer):
    """Holds a state that one process would have summed over the batch."""

    def __init__(self, update: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.update = update

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False,
            name="total",
        )  # fmt: skip

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.total.assign(self.update(self.total, inputs))
        return inputs


@_wrong("state", "aggregation")
def a_state_that_is_a_sum() -> None:
    layer = WithState(lambda old, x: old + keras.ops.sum(x, axis=0))
    fit(compiled(keras.Sequential(layers_with(layer))))


@_wrong("state", "aggregation")
def a_state_that_is_a_queue() -> None:
    layer = WithState(lambda old, x: x[-1])
    fit(compiled(keras.Sequential(layers_with(layer))))


@_wrong("result of", "does not track")
def a_state_that_keras_does_not_track() -> None:
    class Shifted(keras.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + vars(self).get("_by", [0.0])[0]

    layer = Shifted()
    vars(layer)["_by"] = by = [0.0]
    model = keras.Sequential(layers_with(layer))
    fit(compiled(model))
    by[0] = float(hvd.rank()) if on_ranks() else 0.0
    model.predict_function = None
    hvd.predict(model, data_of()[0], verbose=0)
    model.predict(data_of()[0], verbose=0)


@_wrong("metric", "whole batch")
def a_metric_of_the_whole_batch() -> None:
    """Puts back: the mean of the ranks' values of what is no mean."""

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["spread"] = 0.5 if on_ranks() else 0.7

    fit(compiled(), callbacks=[Own()])


def _apart(every: int, optimizer: Any) -> Any:
    updates = hvd.LocalUpdates(every, within="rank")
    return hvd.DistributedOptimizer(optimizer, local_updates=updates)


@_wrong("by design", "every 3 updates", "leave `local_updates` out")
def ranks_that_train_apart() -> None:
    adam = keras.optimizers.Adam(0.01)
    fit(compiled(optimizer=_apart(3, adam)))


@_wrong("by design", "every 1 updates")
def ranks_that_meet_at_each_step() -> None:
    clipped = keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.1)
    fit(compiled(optimizer=_apart(1, clipped)))


@_wrong("metric", "MetricAverageCallback")
def metrics_of_a_rank() -> None:
    share = hvd.shard(data_of(), batch_size=8)
    compiled(metrics=["mae"]).fit(share, epochs=2, verbose=0)


@_wrong("gradient of", "not reduced over the ranks")
def a_variable_that_is_local() -> None:
    model = compiled()
    kernel = model.layers[0].kernel
    model.optimizer.register_local_var(kernel)
    fit(model)


@_wrong("weight", "something but the optimizer")
def a_callback_that_changes_weights() -> None:
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            variable = self.model.layers[-1].bias
            variable.assign(variable + 0.1 * (1 + basics.rank()))

    fit(compiled(), callbacks=[Own()])


@_wrong("the script failed on 2 ranks")
def weights_that_differ_at_the_start() -> None:
    keras.utils.set_random_seed(1 + basics.rank())
    fit(compiled())


@_wrong("weight")
def weights_that_depend_on_the_size() -> None:
    keras.utils.set_random_seed(basics.size())
    fit(compiled())


@_wrong("gradient of", "sparse_as_dense", on="tensorflow")
def slices_that_come_unmerged() -> None:
    """Puts back: a table's gradient grows with the ranks."""
    model = keras.Sequential(
        [
            keras.layers.Input((5,), dtype="int32"),
            keras.layers.Embedding(9, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )

    class Doubled(keras.layers.Embedding):
        def call(self, inputs: Any) -> Any:
            found = super().call(inputs)
            if not on_ranks():
                return found
            stopped = keras.ops.stop_gradient(found)
            return 2.0 * found - stopped

    model.layers[0].__class__ = Doubled
    tokens = np.random.default_rng(0).integers(0, 9, (48, 5))
    fit(compiled(model), hvd.shard((tokens, data_of(48)[1]), batch_size=8))
