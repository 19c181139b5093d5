"""A program for Horovod 0.16: a TensorFlow 1 session with its hook."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
hvd.init()
rng = np.random.RandomState(hvd.rank())
x = rng.rand(512, 4).astype("float32")
y = x.sum(axis=1, keepdims=True).astype("float32")

inputs = tf.placeholder(tf.float32, [None, 4])
targets = tf.placeholder(tf.float32, [None, 1])
weights = tf.get_variable(
    "weights",
    [4, 1],
    initializer=tf.random_normal_initializer(seed=hvd.rank()),
)
loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - targets))
global_step = tf.train.get_or_create_global_step()
opt = tf.train.MomentumOptimizer(0.05 * hvd.size(), 0.5)
opt = hvd.DistributedOptimizer(opt, op=hvd.Average)
train_op = opt.minimize(loss, global_step=global_step)
hooks = [
    hvd.BroadcastGlobalVariablesHook(0),
    tf.train.StopAtStepHook(last_step=60),
]
config = tf.ConfigProto()
values = []
with tf.train.MonitoredTrainingSession(hooks=hooks, config=config) as session:
    while not session.should_stop():
        _, value, learned = session.run(
            [train_op, loss, weights], {inputs: x, targets: y}
        )
        values.append(value)
with tf.Session() as session:
    everyone = session.run(hvd.allgather(learned.T))
assert np.ptp(everyone, axis=0).max() == 0
print("loss fell:", values[-1] < values[0] / 10)
