"""Labels the nodes of a graph by a graph convolutional network.

    hvdrun -np 2 python examples/graph.py

Nodes are handwritten digits, edges join each to the 8 that look most like it.
Labels of 100 nodes are known. Each rank has the whole graph, and trains on its
part of the labelled nodes: rows are numbers of nodes.
"""

from __future__ import annotations

from typing import Any

import digit_data
import job
import keras
import numpy as np
from absl import app, flags
from sklearn.neighbors import kneighbors_graph

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=15, batch_size=20)

WIDTH = 32


def neighbours(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the neighbours of each node, itself too, and their weights."""
    edges = kneighbors_graph(features, 8, include_self=False).toarray()
    edges = np.maximum(edges, edges.T) + np.eye(len(edges))
    degrees = edges.sum(axis=1)
    weights = edges / np.sqrt(degrees[:, None] * degrees)
    most = int(degrees.max())
    order = np.argsort(-weights, axis=1)[:, :most].astype(np.int32)
    kept = np.take_along_axis(weights, order, axis=1)
    return order, kept.astype(np.float32)[..., None]


class GraphNetwork(keras.Model):
    """Two graph convolutions over a graph that all ranks know."""

    def __init__(self, features: np.ndarray) -> None:
        super().__init__()
        nodes, weights = neighbours(features)
        self.features = keras.ops.convert_to_tensor(features)
        self.nodes = keras.ops.convert_to_tensor(nodes)
        self.weights_of_nodes = keras.ops.convert_to_tensor(weights)
        self.hidden = keras.layers.Dense(WIDTH, activation="relu")
        self.top = keras.layers.Dense(10)

    def mixed(self, values: Any, rows: Any) -> Any:
        """Returns the weighted sum of the neighbours' values."""
        ops = keras.ops
        around = ops.take(values, ops.take(self.nodes, rows, axis=0), axis=0)
        return ops.sum(
            around * ops.take(self.weights_of_nodes, rows, axis=0), axis=1
        )

    def call(self, rows: Any) -> Any:
        every = keras.ops.arange(len(self.features))
        hidden = self.hidden(self.mixed(self.features, every))
        return self.top(self.mixed(hidden, rows))


def main(_argv: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    (images, labels), _ = digit_data.load("digits")
    numbers = np.arange(len(images), dtype=np.int32)
    train = hvd.shard(
        (numbers[:100], labels[:100]),
        batch_size=job.batch_size_of_rank(),
        shuffle=True,
    )
    model = GraphNetwork(images.reshape(len(images), -1))
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(
        train,
        epochs=FLAGS.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    results = model.evaluate(
        hvd.shard((numbers[100:], labels[100:]), batch_size=128),
        callbacks=[average],
        return_dict=True,
        verbose=0,
    )
    job.say(
        f"test accuracy {results['accuracy']:.4f} on {len(images) - 100} nodes"
    )


if __name__ == "__main__":
    app.run(main)
