"""Programs in which `hvdrun --verify` must raise no alarm: `RIGHT`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from verify.training import (
    BACKEND,
    ROWS,
    compiled,
    data_of,
    fit,
    layers_with,
    moved,
    sgd,
)


def readme() -> None:
    x, y = data_of()
    model = compiled(metrics=["mae"])
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


def on_one_host() -> None:
    updates = hvd.LocalUpdates(every=5)
    adam = keras.optimizers.Adam(0.01)
    fit(
        compiled(
            optimizer=hvd.DistributedOptimizer(adam, local_updates=updates)
        )
    )


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
    model = compiled(
        model, "sparse_categorical_crossentropy", optimizer=adam,
        weighted_metrics=["accuracy"],
    )  # fmt: skip
    fit(model, hvd.shard((tokens, tokens), batch_size=8, shuffle=True))


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
    x, _ = data_of(48)
    model = Gan()
    model.built = True
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    )
    fit(model, hvd.shard(x, batch_size=8, policy="drop"), [moved()])


Gan.call = lambda self, x: self.critic(x)  # type: ignore[method-assign]


def normalized() -> None:
    more = [
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.GaussianNoise(0.1),
    ]
    fit(compiled(keras.Sequential(layers_with(*more))), callbacks=[moved()])


class Noisy(keras.Model):
    """Adds noise to its rows in `train_step`.

    Args:
        draw: Returns numbers of a shape.
        is_of_rows: Whether each row gets its own.
    """

    def __init__(self, draw: Callable[[Any], Any], is_of_rows: bool) -> None:
        super().__init__()
        self.inner = keras.Sequential(layers_with())
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


def noisy(draw: Any, is_of_rows: bool = True, callbacks: Any = ()) -> None:
    model = Noisy(draw, is_of_rows)
    model.build((None, 6))
    data = hvd.shard(data_of(48), batch_size=8, policy="drop")
    fit(compiled(model), data, callbacks)


def noise_of_the_batch() -> None:
    """Numbers that all rows share are the same on all ranks."""
    noisy(lambda shape: keras.random.normal(shape), False)
    if BACKEND == "torch":
        noisy(lambda shape: np.random.normal(size=shape), False)


def noise_of_each_rank() -> None:
    noisy(lambda shape: keras.random.normal(shape), True, [moved()])
    if BACKEND == "torch":
        import torch

        noisy(lambda shape: torch.randn(shape), True, [moved()])
        np.random.seed(5 + hvd.rank())
        noisy(lambda shape: np.random.normal(size=shape))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        noisy(lambda shape: tf.random.normal(shape), True, [moved()])


class NoiseLayer(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        import tensorflow as tf

        return x + 0.0 * tf.random.normal(tf.shape(x))


def noise_while_built() -> None:
    """A model is built before ranks draw apart; no row gets those numbers."""
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(1)(NoiseLayer()(inputs))
    fit(compiled(keras.Model(inputs, outputs)), callbacks=[moved()])


def loop_with_a_tape() -> None:
    import tensorflow as tf

    for compiles in (False, True):
        dropout = keras.layers.Dropout(0.2, seed=1 + hvd.rank())
        model = keras.Sequential(layers_with(dropout))
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
            for x, y in hvd.shard(data_of(), batch_size=8):
                run(x, y, model, optimizer)


def loop_of_torch() -> None:
    import torch

    model = keras.Sequential(layers_with())
    optimizer = sgd()
    for _ in range(3):
        for x, y in hvd.shard(data_of(), batch_size=8):
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

    model = keras.Sequential(layers_with())
    optimizer = sgd()
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
        for x, y in hvd.shard(data_of(48), batch_size=8):
            values = step(*values, x, y)


def py_dataset() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            x, y = data_of(7 * 8)
            return x[8 * index :][:8], y[8 * index :][:8]

    fit(compiled(), hvd.shard(Batches(), shuffle=True))


def filled() -> None:
    """A rank has no row in the last step; then all batches are full."""
    fit(compiled(), hvd.shard(data_of(33), batch_size=8))
    share = hvd.shard(data_of(37), batch_size=8, policy="pad")
    fit(compiled(metrics=["mae"]), share)


def one_batch_at_a_time() -> None:
    model = compiled(metrics=["mae"])
    for x, y in hvd.shard(data_of(48), batch_size=8):
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
    fit(compiled(keras.Sequential(layers_with(Turned()))))


RIGHT: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        readme,
        on_one_host,
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
