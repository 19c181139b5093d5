"""A loop of JAX: one compiled step that reduces its gradients.

    KERAS_BACKEND=jax hvdrun -np 2 python examples/jax_loop.py

`stateless_apply` of a distributed optimizer averages the gradients inside of
`jax.jit`; `hvd_keras.jax` has collectives for the rest of the step.
"""

from __future__ import annotations

from typing import Any

import digit_data
import jax
import job
import keras
import numpy as np
from absl import app, flags
from jax import numpy as jnp

import hvd_keras as hvd
import hvd_keras.jax as hvd_jax

FLAGS = flags.FLAGS
job.define_flags(epochs=10, batch_size=64)


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def main(_: list[str]) -> None:
    if keras.backend.backend() != "jax":
        raise app.UsageError("KERAS_BACKEND must be jax.")
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # weights differ, until broadcast
    train, test = digit_data.load("digits")
    model = make_model(train[0].shape[1:])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)

    def loss_of(weights: Any, images: Any, labels: Any) -> Any:
        scores, _ = model.stateless_call(weights, [], images)
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, scores, from_logits=True
        )
        return jnp.mean(losses)

    @jax.jit
    def step(weights: Any, slots: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return weights, slots, hvd_jax.allreduce(loss, name="loss")

    weights = [v.value for v in model.trainable_variables]
    slots = [v.value for v in optimizer.variables]
    batches = hvd.shard(
        train,
        batch_size=job.batch_size_of_rank(),
        policy="drop",
        shuffle=True,
    )
    for epoch in range(FLAGS.epochs):
        losses = []
        for images, labels in batches:
            weights, slots, loss = step(weights, slots, images, labels)
            losses.append(float(loss))
        job.say(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    hvd.assert_equal_on_all_ranks(model)
    guesses = np.argmax(hvd.predict(model, test[0], verbose=0), axis=-1)
    job.say(
        f"test accuracy {np.mean(guesses == test[1]):.4f}, ranks: {hvd.size()}"
    )


if __name__ == "__main__":
    app.run(main)
