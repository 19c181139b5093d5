"""An elastic training loop of one's own, written for Horovod."""

import argparse
import os
import time
import zlib

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=0)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

hvd.init()
tf.random.set_seed(1 + hvd.rank())
lr = 0.01
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)]
)
optimizer = tf.optimizers.Adam(lr * hvd.size())
x = tf.constant(np.arange(32, dtype=np.float32).reshape(8, 4) / 32)


@tf.function
def train_one_batch():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


model(x)
optimizer.build(model.trainable_variables)


@hvd.elastic.run
def train(state):
    while state.step < args.steps:
        if os.environ["HVD_MEMBER"] == "0" and state.step == args.kill_at > 0:
            os.kill(os.getpid(), 9)
        train_one_batch()
        time.sleep(args.pause)
        state.step += 1
        if state.step % 5 == 0:
            state.commit()


def on_state_reset():
    optimizer.learning_rate.assign(lr * hvd.size())
    print("reset", hvd.size(), flush=True)


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)
state.register_reset_callbacks([on_state_reset])
train(state)
weights = b"".join(w.numpy().tobytes() for w in model.weights)
rate = round(float(optimizer.learning_rate.numpy()), 6)
print("end", state.step, hvd.size(), rate, zlib.crc32(weights), flush=True)
