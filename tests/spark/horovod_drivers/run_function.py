"""`horovod.spark.run` as programs for Horovod use it."""

import os

import horovod.spark
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from horovod.spark.task import get_available_devices
from pyspark import SparkConf
from pyspark.sql import SparkSession


def train(rate, epochs=1):
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 3))
    y = x @ np.array([[1.0], [2.0], [3.0]])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate))
    model.compile(optimizer, "mse")
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=0,
    )
    losses = history.history["loss"]
    return {
        "rank": hvd.rank(),
        "size": int(os.environ["HOROVOD_SIZE"]),
        "devices": get_available_devices(),
        "flag": os.environ["FLAG"],
        "fell": losses[-1] < 0.1 * losses[0],
        "weights": model.get_weights()[0].ravel().round(5).tolist(),
    }


if __name__ == "__main__":
    conf = SparkConf().setAppName("run").set("spark.ui.enabled", "false")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    results = horovod.spark.run(
        train,
        args=(0.05,),
        kwargs={"epochs": 8},
        num_proc=2,
        start_timeout=120,
        use_gloo=True,
        env={**os.environ, "FLAG": "set"},
        verbose=2,
    )
    assert [one["rank"] for one in results] == [0, 1], results
    assert all(one["size"] == 2 and one["fell"] for one in results), results
    assert all(one["flag"] == "set" for one in results), results
    assert results[0]["devices"] == [], results
    assert results[0]["weights"] == results[1]["weights"], results
    spark.stop()
    print("ran on", len(results), "ranks")
