"""Elastic training by `fit`, written for Horovod."""

import argparse
import os
import zlib

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=0)
args = parser.parse_args()

hvd.init()
tf.random.set_seed(1 + hvd.rank())
x = np.arange(256, dtype=np.float32).reshape(64, 4) / 256
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(8)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
model.compile(loss="mse", optimizer=optimizer)
# Builds the state of the optimizer.
model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)
num_batches = 0


class Kill(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global num_batches
        num_batches += 1
        is_due = num_batches == args.kill_at
        if os.environ["HVD_MEMBER"] == "1" and is_due:
            os.kill(os.getpid(), 9)


def on_state_reset():
    print("reset", hvd.size(), flush=True)


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
callbacks = [
    Kill(),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
]


@hvd.elastic.run
def train(state):
    state.model.fit(
        dataset,
        steps_per_epoch=12 // hvd.size(),
        epochs=4,
        initial_epoch=state.epoch,
        callbacks=callbacks,
        verbose=0,
    )


train(state)
weights = b"".join(w.numpy().tobytes() for w in model.weights)
print("end", state.epoch, hvd.size(), zlib.crc32(weights), flush=True)
