"""Predicts from a table: named columns, class weights, AUC, early stopping.

    hvdrun -np 2 python examples/tabular.py

The table is scikit-learn's on breast cancer, 569 rows of 30 columns. The rows
do not divide by the batch; each counts once. AUC is that of all rows, on all
ranks.
"""

from __future__ import annotations

import job
import keras
import numpy as np
from absl import app, flags
from sklearn import datasets

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=20, batch_size=64)


def make_model(columns: dict[str, np.ndarray]) -> keras.Model:
    inputs = {name: keras.Input((1,), name=name) for name in columns}
    scaled = []
    for name, column in columns.items():
        mean, variance = float(column.mean()), float(column.var())
        scale = keras.layers.Normalization(mean=mean, variance=variance)
        scaled.append(scale(inputs[name]))
    x = keras.layers.Concatenate()(scaled)
    x = keras.layers.Dense(32, activation="relu")(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    table = datasets.load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.data))
    columns = {
        name.replace(" ", "_"): table.data[order, i : i + 1].astype(np.float32)
        for i, name in enumerate(table.feature_names)
    }
    labels = table.target[order].astype(np.float32)[:, None]

    def rows(
        start: int, stop: int | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        part = {name: column[start:stop] for name, column in columns.items()}
        return part, labels[start:stop]

    model = make_model(rows(0, 400)[0])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    average = hvd.callbacks.MetricAverageCallback()
    batch_size = job.batch_size_of_rank()
    held_out = hvd.shard(rows(400, None), batch_size=batch_size)
    model.fit(
        hvd.shard(rows(0, 400), batch_size=batch_size, shuffle=True),
        epochs=FLAGS.epochs,
        validation_data=held_out,
        class_weight={0: 1.3, 1: 0.8},
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            average,
            keras.callbacks.EarlyStopping(
                patience=3, restore_best_weights=True
            ),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    results = model.evaluate(
        held_out, callbacks=[average], return_dict=True, verbose=0
    )
    job.say(f"test AUC {results['auc']:.4f}, loss {results['loss']:.4f}")


if __name__ == "__main__":
    app.run(main)
