"""A program in the manner of deepmd-kit: a plain session, no resources.

`disable_v2_behavior` brings back variables that are references, which ops
change in place. The first rank alone saves.
"""

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
hvd.init()
rng = np.random.RandomState(hvd.rank())
x = rng.rand(512, 4)
y = x.sum(axis=1, keepdims=True)

inputs = tf.placeholder(tf.float64, [None, 4])
targets = tf.placeholder(tf.float64, [None, 1])
weights = tf.get_variable(
    "weights",
    [4, 1],
    tf.float64,
    initializer=tf.random_normal_initializer(seed=hvd.rank()),
)
assert weights.dtype.name == "float64_ref"
loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - targets))
global_step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, global_step, 100, 0.9)
opt = hvd.DistributedOptimizer(tf.train.AdamOptimizer(rate))
train_op = opt.minimize(
    loss, global_step=global_step, var_list=tf.trainable_variables()
)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(hvd.broadcast_global_variables(0))
    values = []
    for _ in range(150):
        _, value = session.run([train_op, loss], {inputs: x, targets: y})
        values.append(value)
    everyone = session.run(hvd.allgather(tf.transpose(weights)))
    if hvd.rank() == 0:
        path = str(Path(sys.argv[1]) / "model.ckpt")
        saved = tf.train.Saver().save(session, path, global_step=global_step)
        assert saved.endswith("-150")
assert np.ptp(everyone, axis=0).max() == 0
print("loss fell:", values[-1] < values[0] / 10)
