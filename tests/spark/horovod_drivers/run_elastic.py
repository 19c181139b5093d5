"""`horovod.spark.run_elastic`: a task dies once."""

import os
import pathlib
import signal
import sys
import tempfile

import horovod.spark
import horovod.tensorflow as hvd
import tensorflow as tf
from pyspark.sql import SparkSession


def train(folder):
    hvd.init()
    weight = tf.Variable(4.0)
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    dies = pathlib.Path(folder) / "died"

    @hvd.elastic.run
    def loop(state):
        while state.batch < 20:
            with tf.GradientTape() as tape:
                loss = weight * weight
            gradient = tape.gradient(loss, weight)
            optimizer.apply_gradients([(gradient, weight)])
            if state.batch == 5 and hvd.rank() == 1 and not dies.exists():
                dies.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.batch += 1
            state.commit()

    state = hvd.elastic.TensorFlowState(variables=[weight], batch=0)
    loop(state)
    return hvd.rank(), state.batch, float(weight)


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        found = horovod.spark.run_elastic(
            train, args=(folder,), num_proc=2, min_num_proc=1, reset_limit=2
        )
        assert (pathlib.Path(folder) / "died").exists()
    spark.stop()
    assert [one[:2] for one in found] == [(0, 20), (1, 20)], found
    assert found[0][2] < 0.1, found
    print("ran on", len(found), "ranks")
    sys.exit(0)
