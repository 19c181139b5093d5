"""A loop of torch: `backward()`, and an optimizer of Keras that reduces.

    KERAS_BACKEND=torch hvdrun -np 2 python examples/torch_loop.py

Layers, optimizers and `hvd.shard` are as on other backends; `hvd_keras.torch`
has collectives for tensors of torch.
"""

from __future__ import annotations

import digit_data
import job
import keras
import numpy as np
import torch
from absl import app, flags

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch

FLAGS = flags.FLAGS
job.define_flags(epochs=10, batch_size=64)


class Net(torch.nn.Module):
    """A module of torch that holds layers of Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(128, activation="relu")
        self.scores = keras.layers.Dense(10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.hidden(images.flatten(1)))
        return scores


def main(_: list[str]) -> None:
    if keras.backend.backend() != "torch":
        raise app.UsageError("KERAS_BACKEND must be torch.")
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # weights differ, until broadcast
    train, (test_images, test_labels) = digit_data.load("digits")
    net = Net()
    net(torch.as_tensor(test_images[:1]))  # makes the weights
    variables = net.hidden.trainable_variables + net.scores.trainable_variables
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3))
    optimizer.build(variables)
    hvd.broadcast_variables(variables + optimizer.variables, root_rank=0)
    batches = hvd.shard(
        train,
        batch_size=job.batch_size_of_rank(),
        policy="drop",
        shuffle=True,
    )
    for epoch in range(FLAGS.epochs):
        losses = []
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(
                net(torch.as_tensor(images)), torch.as_tensor(labels).long()
            )
            net.zero_grad()
            loss.backward()
            gradients = [v.value.grad for v in variables]
            with torch.no_grad():
                optimizer.apply(gradients, variables)  # averages them
            losses.append(
                float(hvd_torch.allreduce(loss.detach(), name="loss"))
            )
        job.say(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    hvd.assert_equal_on_all_ranks(variables)
    own = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        guesses = net(torch.as_tensor(test_images[own])).argmax(1).numpy()
    counts = [np.sum(guesses == test_labels[own]), len(guesses)]
    num_right, num_all = hvd_torch.allreduce(
        torch.tensor(counts), hvd.Sum, name="counts"
    )
    job.say(f"test accuracy {num_right / num_all:.4f}, ranks: {hvd.size()}")


if __name__ == "__main__":
    app.run(main)
