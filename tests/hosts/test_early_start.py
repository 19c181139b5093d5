"""Over hosts, gradients leave early where TensorFlow has one thread."""

from __future__ import annotations

import json

from network import ADDRESSES, Network, finish, free_port, python

# Each rank trains on its share of a batch, alone on the whole one, and again
# after a step that failed on its way back, when the first bucket had left.
_RANK = """
    import json
    import keras
    import numpy as np
    import tensorflow as tf
    import hvd_keras as hvd
    from hvd_keras.ops import _early

    fails = tf.Variable(False)

    @tf.custom_gradient
    def may_fail(x):
        def gradient(upstream):
            ok = tf.debugging.Assert(~fails, ["on its way back"])
            with tf.control_dependencies([ok]):
                return tf.identity(upstream)
        return tf.identity(x), gradient

    class MayFail(keras.layers.Layer):
        def call(self, x):
            return may_fail(x)

    def trained(optimizer, x, y, breaks):
        keras.utils.set_random_seed(1)
        conv = keras.layers.Conv2D
        model = keras.Sequential([
            keras.Input((8, 8, 3)), conv(4, 3, activation="relu"), MayFail(),
            conv(4, 3, activation="relu"), keras.layers.Flatten(),
            keras.layers.Dense(1),
        ])
        model.compile(optimizer, "mse")
        errors = 0
        for number in range(6):
            fails.assign(breaks and number == 3)
            try:
                model.train_on_batch(x, y)
            except tf.errors.InvalidArgumentError as error:
                errors += "on its way back" in str(error)
        return model.get_weights(), errors

    ended = []
    end = _early.end
    _early.end = lambda *args: ended.append(args) or end(*args)
    hvd.init()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(16, 8, 8, 3)), draw.normal(size=(16, 1))
    mine = slice(hvd.rank(), None, hvd.size())
    sgd = lambda: keras.optimizers.SGD(0.05, momentum=0.9)
    whole, _ = trained(sgd(), x, y, False)
    broken, _ = trained(sgd(), x, y, True)
    ours, _ = trained(hvd.DistributedOptimizer(sgd()), x[mine], y[mine], False)
    again, errors = trained(
        hvd.DistributedOptimizer(sgd()), x[mine], y[mine], True
    )
    gap = lambda a, b: max(float(abs(v - w).max()) for v, w in zip(a, b))
    print(json.dumps([len(ended), gap(ours, whole), errors,
                      gap(again, broken)]))
    hvd.shutdown()
"""


def test_a_step_ends_as_in_one_process(network: Network, secret: str) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *python(_RANK),
            HVD_SECRET_FILE=secret, HVD_BUCKET_BYTES="300",
            TF_NUM_INTEROP_THREADS="1",
        )
        for host in range(2)
    ]  # fmt: skip
    outputs = []
    for job in jobs:
        status, stdout, stderr = finish(job, 200)
        assert status == 0, stderr
        outputs += stdout.splitlines()
    lines = [line.partition("] ")[2] for line in outputs]
    told = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(told) == 4
    for num_ended, gap, num_errors, gap_again in told:
        assert num_ended >= 4  # buckets of two models
        assert gap < 1e-5
        assert num_errors == 1
        assert gap_again < 1e-5
