"""A program for Horovod 0.28: a loop with its tape."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import gloo_built
from horovod.tensorflow.compression import Compression

hvd.init()
rng = np.random.RandomState(1 + hvd.rank())
x = rng.rand(512, 8).astype("float32")
y = (x.sum(axis=1, keepdims=True) - 4.0).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)

model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="tanh")])
model.add(tf.keras.layers.Dense(1))
loss = tf.losses.MeanSquaredError()
opt = tf.optimizers.Adam(0.01 * hvd.size())


@tf.function
def training_step(xs, ys, first_batch):
    with tf.GradientTape() as tape:
        value = loss(ys, model(xs, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=Compression.none)
    grads = tape.gradient(value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return value


values = []
for batch, (xs, ys) in enumerate(dataset.take(100)):
    values.append(float(training_step(xs, ys, batch == 0)))
    if batch == 50:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)

mean = hvd.allreduce(tf.constant(values[-1]), average=True)
total = hvd.allreduce(tf.constant(values[-1]), op=hvd.Sum)
np.testing.assert_allclose(total, mean * hvd.size(), rtol=1e-5)
everyone = hvd.allgather_object(hvd.rank())
assert everyone == list(range(hvd.size()))
assert hvd.broadcast_object({"batch": 7}, 0)["batch"] == 7
weights = hvd.allgather(tf.reshape(model.trainable_variables[0], [1, -1]))
assert np.ptp(weights.numpy(), axis=0).max() == 0
assert int(opt.iterations) == 100
assert float(opt.lr) > 0
assert gloo_built(verbose=True)
assert issubclass(HorovodInternalError, Exception)
hvd.join()
print("loss fell:", np.mean(values[-5:]) < np.mean(values[:5]) / 2)
