"""What `hvdrun --distribute` tells of scripts that it cannot distribute."""

from __future__ import annotations

import jobs

NO_FIT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(3):
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
print("done")
"""


def test_an_error_of_a_rank_that_is_not_shown_is_shown() -> None:
    code = "import keras, os\n1 / (1 - int(os.environ['HVD_RANK']))"
    job = jobs.run_python(2, code, "--distribute")
    assert job.status != 0
    assert "hvdrun: the last lines of rank 1 (" in job.stderr
    assert "[1] ZeroDivisionError: division by zero" in job.stderr


def test_a_line_that_a_rank_cannot_read_is_told() -> None:
    code = "import os\nif os.environ['HVD_RANK'] == '1': int(input('epochs? '))"
    job = jobs.run_python(2, code, "--distribute")
    assert job.status == 1
    assert "EOFError: `input()` has no line: standard input goes" in job.stderr


LOOP_OF_OURS = """
import keras, numpy as np, tensorflow as tf
import hvd_keras as hvd
layer = keras.layers.Dense(1)
layer.build((None, 2))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
for rows in hvd.shard(np.ones((8, 2), "f"), batch_size=2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer(rows))
    optimizer.apply(tape.gradient(loss, layer.weights), layer.weights)
"""


def test_a_loop_that_reduces_is_no_loop_of_all_work() -> None:
    job = jobs.run_python(2, LOOP_OF_OURS, "--distribute")
    assert job.status == 0, job.stderr
    assert "the same work" not in job.stderr
    assert "nothing was distributed" not in job.stderr


def test_a_script_that_shares_nothing_is_told() -> None:
    job = jobs.run_python(2, NO_FIT, "--distribute")
    assert job.status == 0
    assert job.stdout.count("done") == 1  # of rank 0 alone, and no tag
    assert job.stdout.startswith("done")
    for words in (
        "all 2 ranks do the same work in this loop",  # at its first step
        "Received: the optimizer SGD at <string>:7",
        "nothing was distributed",  # at the end
    ):
        assert job.stderr.count(words) == 1, job.stderr


LOOP_OF_JAX = """
import jax, keras, numpy as np
layer = keras.layers.Dense(1)
layer.build((None, 2))
optimizer = keras.optimizers.SGD(0.1)
optimizer.build(layer.trainable_variables)
def loss(weights, rows):
    return layer.stateless_call(weights, [], rows)[0].mean()
step = jax.jit(jax.grad(loss))
weights = [each.value for each in layer.trainable_variables]
state = [each.value for each in optimizer.variables]
for _ in range(3):
    gradients = step(weights, np.ones((4, 2), "f"))
    weights, state = optimizer.stateless_apply(state, gradients, weights)
"""


def test_a_loop_of_jax_is_no_training_apart() -> None:
    job = jobs.run_python(2, LOOP_OF_JAX, "--distribute", KERAS_BACKEND="jax")
    assert job.status == 0, job.stderr
    assert job.stderr.count("nothing was distributed") == 1, job.stderr
    assert "a model of its own" not in job.stderr
