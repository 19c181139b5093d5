"""Programs that are right, and programs with a mistake.

Each is a function that trains. `RIGHT` must raise no alarm. `WRONG` holds the
words that the result must have; what this package itself would put right or
refuse is put back by hand (`_on_ranks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras import basics

BACKEND = keras.backend.backend()
ROWS = 45  # of 16: two full steps, and one with 13


def _on_ranks() -> bool:
    """Whether this is one of several ranks, and not the one process."""
    return basics.size() > 1


def _data(num_rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    x = random.normal(size=(num_rows, 6)).astype("float32")
    y = random.normal(size=(num_rows, 3)).astype("float32")
    return x, y


def _layers(*more: Any) -> list[Any]:
    return [
        keras.layers.Input((6,)),
        keras.layers.Dense(8, activation="tanh"),
        *more,
        keras.layers.Dense(3),
    ]


def _sgd() -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))


def _moved() -> Any:
    """Returns what gives each rank random numbers of its own in `fit`."""
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def _fit(model: Any, data: Any = None, callbacks: Any = (), **kw: Any) -> Any:
    kw.setdefault("epochs", 5)
    if data is None:
        data = hvd.shard(_data(), batch_size=8)
    average = hvd.callbacks.MetricAverageCallback()
    return model.fit(data, callbacks=[average, *callbacks], verbose=0, **kw)


def _compiled(model: Any = None, loss: Any = "mse", **kw: Any) -> Any:
    if model is None:
        model = keras.Sequential(_layers())
    kw.setdefault("optimizer", _sgd())
    model.compile(loss=loss, **kw)
    return model


# ---- Right ----


def readme() -> None:
    x, y = _data()
    model = _compiled(metrics=["mae"])
    average = hvd.callbacks.MetricAverageCallback()
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.evaluate(hvd.shard((x, y), batch_size=8), callbacks=[average])
    model.fit(
        hvd.shard((x, y), batch_size=8, shuffle=True),
        validation_data=hvd.shard((x, y), batch_size=8),
        callbacks=[start, average],
        epochs=4,
        verbose=0,
    )
    model.evaluate(hvd.shard((x, y), batch_size=8), callbacks=[average])
    hvd.predict(model, x, verbose=0)
    model.predict(x, verbose=0)


def masked() -> None:
    random = np.random.default_rng(2)
    tokens = random.integers(1, 20, (ROWS, 7))
    for row, length in enumerate(random.integers(1, 8, ROWS)):
        tokens[row, length:] = 0
    model = keras.Sequential(
        [
            keras.layers.Input((7,), dtype="int32"),
            keras.layers.Embedding(20, 5, mask_zero=True),
            keras.layers.Dense(20, activation="softmax"),
        ]
    )
    adam = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = _compiled(
        model, "sparse_categorical_crossentropy", optimizer=adam,
        weighted_metrics=["accuracy"],
    )  # fmt: skip
    _fit(model, hvd.shard((tokens, tokens), batch_size=8, shuffle=True))


class Gan(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        dense = keras.layers.Dense
        self.generator = keras.Sequential(
            [keras.layers.Input((4,)), dense(8, "relu"), dense(6)]
        )
        self.critic = keras.Sequential(
            [keras.layers.Input((6,)), dense(8, "tanh"), dense(1)]
        )
        self.seeds = keras.random.SeedGenerator(3)

    def compile(self, for_critic: Any, for_generator: Any) -> None:
        super().compile()
        self.for_critic, self.for_generator = for_critic, for_generator
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def both_losses(self, real: Any) -> tuple[Any, Any]:
        (real,) = keras.tree.flatten(real)  # a list on torch
        count = keras.ops.shape(real)[0]
        latent = keras.random.normal((count, 4), seed=self.seeds)
        fake = self.generator(latent)
        of_fake, of_real = self.critic(fake), self.critic(real)
        ones, zeros = keras.ops.ones_like, keras.ops.zeros_like
        critic = self.loss_fn(ones(of_real), of_real)
        critic += self.loss_fn(zeros(of_fake), of_fake)
        return critic, self.loss_fn(ones(of_fake), of_fake)

    def train_step(self, real: Any) -> Any:
        if BACKEND == "torch":
            return self._by_torch(real)
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as tape:
            critic, generator = self.both_losses(real)
        for loss, optimizer, part in (
            (critic, self.for_critic, self.critic),
            (generator, self.for_generator, self.generator),
        ):
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"critic": critic, "generator": generator}

    def _by_torch(self, real: Any) -> Any:
        import torch

        critic, generator = self.both_losses(real)
        found = {}
        for loss, part in ((critic, self.critic), (generator, self.generator)):
            values = [v.value for v in part.trainable_variables]
            found[part] = torch.autograd.grad(loss, values, retain_graph=True)
        with torch.no_grad():
            for part, optimizer in (
                (self.critic, self.for_critic),
                (self.generator, self.for_generator),
            ):
                optimizer.apply(list(found[part]), part.trainable_variables)
        return {"critic": critic.detach(), "generator": generator.detach()}


def gan() -> None:
    x, _ = _data(48)
    model = Gan()
    model.built = True
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    )
    _fit(model, hvd.shard(x, batch_size=8, policy="drop"), [_moved()])


Gan.call = lambda self, x: self.critic(x)  # type: ignore[method-assign]


def normalized() -> None:
    more = [
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.GaussianNoise(0.1),
    ]
    _fit(_compiled(keras.Sequential(_layers(*more))), callbacks=[_moved()])


class Noisy(keras.Model):
    """Adds noise to its rows in `train_step`.

    Args:
        draw: Returns numbers of a shape.
        is_of_rows: Whether each row gets its own.
    """

    def __init__(self, draw: Callable[[Any], Any], is_of_rows: bool) -> None:
        super().__init__()
        self.inner = keras.Sequential(_layers())
        self.draw, self.is_of_rows = draw, is_of_rows

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x)

    def train_step(self, *args: Any) -> Any:
        *state, (x, y) = args
        shape = keras.ops.shape(x) if self.is_of_rows else (6,)
        # What is drawn differs from that of one process.
        noise = keras.ops.convert_to_tensor(self.draw(shape))
        x = x + 0.0 * keras.ops.cast(noise, "float32")
        return super().train_step(*state, (x, y))


def _noisy(draw: Any, is_of_rows: bool = True, callbacks: Any = ()) -> None:
    model = Noisy(draw, is_of_rows)
    model.build((None, 6))
    data = hvd.shard(_data(48), batch_size=8, policy="drop")
    _fit(_compiled(model), data, callbacks)


def noise_of_the_batch() -> None:
    """Numbers that all rows share are the same on all ranks."""
    _noisy(lambda shape: keras.random.normal(shape), False)
    if BACKEND == "torch":
        _noisy(lambda shape: np.random.normal(size=shape), False)


def noise_of_each_rank() -> None:
    _noisy(lambda shape: keras.random.normal(shape), True, [_moved()])
    if BACKEND == "torch":
        import torch

        _noisy(lambda shape: torch.randn(shape), True, [_moved()])
        np.random.seed(5 + hvd.rank())
        _noisy(lambda shape: np.random.normal(size=shape))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        _noisy(lambda shape: tf.random.normal(shape), True, [_moved()])


class NoiseLayer(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        import tensorflow as tf

        return x + 0.0 * tf.random.normal(tf.shape(x))


def noise_while_built() -> None:
    """A model is built before ranks draw apart; no row gets those numbers."""
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(1)(NoiseLayer()(inputs))
    _fit(_compiled(keras.Model(inputs, outputs)), callbacks=[_moved()])


def loop_with_a_tape() -> None:
    import tensorflow as tf

    for compiles in (False, True):
        dropout = keras.layers.Dropout(0.2, seed=1 + hvd.rank())
        model = keras.Sequential(_layers(dropout))
        optimizer = keras.optimizers.Adam(0.01)

        def step(x: Any, y: Any, model: Any, optimizer: Any) -> Any:
            with tf.GradientTape() as tape:
                each = keras.ops.mean((model(x, training=True) - y) ** 2, -1)
                loss = hvd.global_mean(each)
            tape = hvd.DistributedGradientTape(tape)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply(gradients, variables)
            return loss

        run = tf.function(step) if compiles else step
        for _ in range(3):
            for x, y in hvd.shard(_data(), batch_size=8):
                run(x, y, model, optimizer)


def loop_of_torch() -> None:
    import torch

    model = keras.Sequential(_layers())
    optimizer = _sgd()
    for _ in range(3):
        for x, y in hvd.shard(_data(), batch_size=8):
            x, y = torch.as_tensor(x), torch.as_tensor(y)
            each = ((model(x, training=True) - y) ** 2).mean(-1)
            model.zero_grad()
            hvd.global_mean(each).backward()
            variables = model.trainable_variables
            gradients = [v.value.grad for v in variables]
            with torch.no_grad():
                optimizer.apply(gradients, variables)


def loop_of_jax() -> None:
    import jax

    model = keras.Sequential(_layers())
    optimizer = _sgd()
    optimizer.build(model.trainable_variables)

    def loss_of(trained: Any, others: Any, x: Any, y: Any) -> Any:
        outputs, others = model.stateless_call(trained, others, x)
        return hvd.global_mean(((outputs - y) ** 2).mean(-1)), others

    @jax.jit
    def step(trained: Any, others: Any, state: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(loss_of, has_aux=True)
        gradients, others = gradient(trained, others, x, y)
        trained, state = optimizer.stateless_apply(state, gradients, trained)
        return trained, others, state

    values = (
        [v.value for v in model.trainable_variables],
        [v.value for v in model.non_trainable_variables],
        [v.value for v in optimizer.variables],
    )
    for _ in range(3):
        for x, y in hvd.shard(_data(48), batch_size=8):
            values = step(*values, x, y)


def py_dataset() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            x, y = _data(7 * 8)
            return x[8 * index :][:8], y[8 * index :][:8]

    _fit(_compiled(), hvd.shard(Batches(), shuffle=True))


def filled() -> None:
    """A rank has no row in the last step; then all batches are full."""
    _fit(_compiled(), hvd.shard(_data(33), batch_size=8))
    share = hvd.shard(_data(37), batch_size=8, policy="pad")
    _fit(_compiled(metrics=["mae"]), share)


def one_batch_at_a_time() -> None:
    model = _compiled(metrics=["mae"])
    for x, y in hvd.shard(_data(48), batch_size=8):
        model.train_on_batch(x, y)


class Turned(keras.layers.Layer):
    """Gradients change by 1 % where rounding changes a last digit."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 5))

    def call(self, x: Any) -> Any:
        ops, kernel = keras.ops, self.kernel
        turns = ops.sign(ops.sin(ops.stop_gradient(kernel) * 1e7))
        z = ops.matmul(x, kernel * turns)
        return ops.matmul(x, kernel) + 0.01 * (z - ops.stop_gradient(z))


def turned_by_rounding() -> None:
    _fit(_compiled(keras.Sequential(_layers(Turned()))))


RIGHT: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        readme,
        masked,
        normalized,
        py_dataset,
        filled,
        one_batch_at_a_time,
        noise_of_the_batch,
        turned_by_rounding,
    )
}
if BACKEND != "jax":
    RIGHT["gan"] = gan
    # On JAX, a step draws from a generator that the model holds.
    RIGHT["noise_of_each_rank"] = noise_of_each_rank
if BACKEND == "tensorflow":
    RIGHT["noise_while_built"] = noise_while_built
RIGHT["loop"] = {
    "tensorflow": loop_with_a_tape,
    "jax": loop_of_jax,
    "torch": loop_of_torch,
}[BACKEND]


# ---- Wrong ----

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
    model = keras.Sequential(_layers(dropout))
    _without_moving(lambda: _fit(_compiled(model), callbacks=[_moved()]))


@_wrong("torch.* " + _SAME, on="torch")
def masks_of_torch_are_equal() -> None:
    model = keras.Sequential(_layers(keras.layers.Dropout(0.3)))
    _without_moving(lambda: _fit(_compiled(model), callbacks=[_moved()]))


@_wrong("layer 'noise' " + _SAME, "BroadcastGlobalVariablesCallback")
def noise_of_layers_is_equal() -> None:
    noise = keras.layers.GaussianNoise(0.1, name="noise")
    model = keras.Sequential(_layers(noise))
    _fit(_compiled(model), hvd.shard(_data(48), batch_size=8, policy="drop"))


@_wrong("keras.random.* " + _SAME, on="tensorflow torch")
def noise_of_keras_is_equal() -> None:
    keras.random.normal((1,))
    _without_moving(lambda: _noisy(keras.random.normal, callbacks=[_moved()]))


@_wrong("tf.random.* " + _SAME, on="tensorflow")
def noise_of_tensorflow_is_equal() -> None:
    import tensorflow as tf

    _without_moving(
        lambda: _noisy(
            lambda shape: tf.random.normal(shape), callbacks=[_moved()]
        )
    )


@_wrong("torch.* " + _SAME, on="torch")
def noise_of_torch_is_equal() -> None:
    import torch

    _noisy(lambda shape: torch.randn(shape))


@_wrong("np.random.* " + _SAME, "hvd.rank()", on="torch")
def noise_of_numpy_is_equal() -> None:
    _noisy(lambda shape: np.random.normal(size=shape))


@_wrong("layer 'masks' " + _SAME, "seed=", on="tensorflow")
def masks_of_a_loop_are_equal() -> None:
    import tensorflow as tf

    dropout = keras.layers.Dropout(0.2, name="masks")
    model = keras.Sequential(_layers(dropout))
    optimizer = _sgd()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            each = keras.ops.mean((model(x, training=True) - y) ** 2, -1)
            loss = hvd.global_mean(each)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for x, y in hvd.shard(_data(), batch_size=8):
        step(x, y)


@_wrong("gradient of")
def a_small_term_of_the_ranks() -> None:
    class Small(keras.regularizers.Regularizer):
        def __call__(self, kernel: Any) -> Any:
            return 1e-3 * _on_ranks() * keras.ops.sum(kernel)

    layers = _layers(keras.layers.Dense(5, kernel_regularizer=Small()))
    _fit(_compiled(keras.Sequential(layers)))


class Labelled(keras.Model):
    """Takes the mean of a loss over the rows that have a label."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential(_layers())

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


@_wrong("gradient of", "`compute_loss` of `Labelled`")
def a_mean_over_labelled_rows() -> None:
    model = Labelled()
    model.build((None, 6))
    _fit(_compiled(model))


@_wrong("gradient of", "compares the rows of a batch")
def a_loss_between_rows() -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        gap = keras.ops.expand_dims(y_pred, 0) - keras.ops.expand_dims(
            y_pred, 1
        )
        return keras.ops.mean(keras.ops.square(gap), axis=(1, 2))

    _fit(_compiled(loss=loss), hvd.shard(_data(48), batch_size=8))


@_wrong("gradient of", "multiplies the rows of a batch by each other")
def a_table_in_a_contrastive_loss() -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        products = keras.ops.matmul(y_pred, keras.ops.transpose(y_pred))
        return keras.ops.mean(keras.ops.square(products), axis=1)

    keras.utils.set_random_seed(3)
    layers = [keras.Input((), dtype="int32"), keras.layers.Embedding(5, 3)]
    x = np.arange(48) % 5
    data = hvd.shard((x, x[:, None]), batch_size=8)
    _fit(_compiled(keras.Sequential(layers), loss), data)


def _scaled_loss(factor: Callable[[Any], Any]) -> Any:
    """Returns a model whose loss is multiplied on the ranks alone."""

    class Scaled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential(_layers())

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
            return loss * factor(x) if _on_ranks() else loss

    model = Scaled()
    model.build((None, 6))
    return _compiled(model)


@_wrong("`compute_loss` of `Scaled`", "mean over this rank's rows: 6 and 7")
def rows_guessed_from_the_batch() -> None:
    """Puts back: a rank divides by its own rows where the mean is due."""

    def factor(x: Any) -> Any:
        rows = keras.ops.cast(keras.ops.shape(x)[0], "float32")
        return keras.ops.where(keras.ops.equal(rows, 8.0), 1.0, 6.5 / rows)

    _fit(_scaled_loss(factor))


@_wrong("gradient of", "sum over this rank's rows")
def a_sum_is_divided_by_the_ranks() -> None:
    """Puts back: a sum over the ranks' rows becomes 1/N."""
    _fit(_scaled_loss(lambda x: 0.5))


@_wrong("gradient of", "summed over 2 ranks")
def gradients_of_means_are_summed() -> None:
    sgd = keras.optimizers.SGD(0.05)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum)
    _fit(_compiled(optimizer=optimizer))


@_wrong("Step 4", "gradient of")
def counts_stay_traced() -> None:
    """Puts back: what was traced for `fit` divides in `train_on_batch`."""
    after = [1.0]
    model = _scaled_loss(lambda x: after[0])
    x, y = _data(48)
    own = (
        slice(8 * hvd.rank(), 8 * hvd.rank() + 8) if _on_ranks() else slice(16)
    )
    _fit(model, hvd.shard((x, y), batch_size=8), epochs=1)
    after[0] = 2.4
    model.train_function = None
    model.train_on_batch(x[own], y[own])
    model.train_on_batch(x[own], y[own])


class OwnStep(keras.Model):
    """A train step in which something is done to gradients or loss."""

    change: Any = staticmethod(lambda gradients: gradients)

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential(_layers())

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
    _fit(_compiled(model), hvd.shard(_data(48), batch_size=8))


@_wrong("rows", "orders")
def a_shuffle_without_a_seed() -> None:
    """Puts back: each rank shuffles the data in its own order."""
    x, y = _data(48)
    order = np.arange(48)
    if _on_ranks():
        order = np.random.default_rng(hvd.rank()).permutation(48)
    part = slice(8 * hvd.rank(), None)

    class Own(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            rows = order[16 * index :][part if _on_ranks() else slice(None)]
            rows = rows[: 8 if _on_ranks() else 16]
            return x[rows], y[rows]

    _fit(_compiled(), Own(), shuffle=False)


@_wrong("rows", "orders")
def a_rank_looked_at_its_data() -> None:
    """Puts back: rank 0 is a batch ahead of the others."""
    x, y = _data(96)
    ahead = 1 if _on_ranks() and hvd.rank() == 0 else 0
    size = 8 if _on_ranks() else 16

    class Own(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            first = 16 * (index + ahead) + (
                8 * hvd.rank() if _on_ranks() else 0
            )
            return x[first:][:size], y[first:][:size]

    _fit(_compiled(), Own(), shuffle=False)


@_wrong("rows", "all ranks train on the same rows")
def the_same_data_on_all_ranks() -> None:
    x, y = _data(32)
    _compiled().fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)


@_wrong("rows", "cuts its data by `hvd.rank()`")
def data_cut_by_hand() -> None:
    x, y = (part[hvd.rank() :: hvd.size()] for part in _data(48))
    _fit(_compiled(), (x, y)[0], y=y, batch_size=8, shuffle=False)


@_wrong("learning rate", "a callback or the script sets the learning rate")
def a_rate_by_the_loss_of_the_batch() -> None:
    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 * logs["loss"]

    _fit(_compiled(), callbacks=[Own()])


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
    _fit(_compiled(keras.Sequential(_layers(layer))))


@_wrong("state", "aggregation")
def a_state_that_is_a_queue() -> None:
    layer = WithState(lambda old, x: x[-1])
    _fit(_compiled(keras.Sequential(_layers(layer))))


@_wrong("result of", "does not track")
def a_state_that_keras_does_not_track() -> None:
    class Shifted(keras.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + vars(self).get("_by", [0.0])[0]

    layer = Shifted()
    vars(layer)["_by"] = by = [0.0]
    model = keras.Sequential(_layers(layer))
    _fit(_compiled(model))
    by[0] = float(hvd.rank()) if _on_ranks() else 0.0
    model.predict_function = None
    hvd.predict(model, _data()[0], verbose=0)
    model.predict(_data()[0], verbose=0)


@_wrong("metric", "whole batch")
def a_metric_of_the_whole_batch() -> None:
    """Puts back: the mean of the ranks' values of what is no mean."""

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["spread"] = 0.5 if _on_ranks() else 0.7

    _fit(_compiled(), callbacks=[Own()])


@_wrong("metric", "MetricAverageCallback")
def metrics_of_a_rank() -> None:
    share = hvd.shard(_data(), batch_size=8)
    _compiled(metrics=["mae"]).fit(share, epochs=2, verbose=0)


@_wrong("gradient of", "not reduced over the ranks")
def a_variable_that_is_local() -> None:
    model = _compiled()
    kernel = model.layers[0].kernel
    model.optimizer.register_local_var(kernel)
    _fit(model)


@_wrong("weight", "something but the optimizer")
def a_callback_that_changes_weights() -> None:
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            variable = self.model.layers[-1].bias
            variable.assign(variable + 0.1 * (1 + basics.rank()))

    _fit(_compiled(), callbacks=[Own()])


@_wrong("the script failed on 2 ranks")
def weights_that_differ_at_the_start() -> None:
    keras.utils.set_random_seed(1 + basics.rank())
    _fit(_compiled())


@_wrong("weight")
def weights_that_depend_on_the_size() -> None:
    keras.utils.set_random_seed(basics.size())
    _fit(_compiled())


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
            if not _on_ranks():
                return found
            stopped = keras.ops.stop_gradient(found)
            return 2.0 * found - stopped

    model.layers[0].__class__ = Doubled
    tokens = np.random.default_rng(0).integers(0, 9, (48, 5))
    _fit(_compiled(model), hvd.shard((tokens, _data(48)[1]), batch_size=8))


ALL = {**RIGHT, **{name: found for name, (found, _) in WRONG.items()}}
