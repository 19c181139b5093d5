"""Trains on handwritten digits in a DataFrame of Spark, and predicts.

python examples/spark_digits.py --num_proc=2
"""

from __future__ import annotations

import os
import sys
import tempfile

import keras
import numpy as np
from absl import app, flags
from pyspark.sql import SparkSession
from sklearn import datasets

from hvd_keras.spark import KerasEstimator, Store

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_proc", 2, "Number of ranks.", lower_bound=1)
flags.DEFINE_integer("epochs", 12, "Passes over the rows.", lower_bound=1)
flags.DEFINE_string("store", None, "Folder that driver and tasks reach.")


def main(_: list[str]) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(
        f"local[{FLAGS.num_proc}]"
    ).getOrCreate()
    data = datasets.load_digits()
    rows = [
        ((image.ravel() / 16.0).tolist(), int(label))
        for image, label in zip(data.images, data.target, strict=True)
    ]
    frame = spark.createDataFrame(rows, "pixels array<float>, digit long")
    train, test = frame.randomSplit([0.8, 0.2], seed=1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    estimator = KerasEstimator(
        model,
        feature_cols=["pixels"],
        label_cols=["digit"],
        store=Store.create(FLAGS.store or tempfile.mkdtemp()),
        epochs=FLAGS.epochs,
        num_proc=FLAGS.num_proc,
    )
    predictions = estimator.fit(train).transform(test).collect()
    right = [np.argmax(row.digit__output) == row.digit for row in predictions]
    print(f"test accuracy {np.mean(right):.4f}")
    spark.stop()


if __name__ == "__main__":
    app.run(main)
