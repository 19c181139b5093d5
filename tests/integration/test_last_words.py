"""Hvdrun's last lines say what a script has forgotten, and where."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

_MODEL = """
import os, sys
import numpy as np
import keras
import hvd_keras as hvd
hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
x = np.ones((16, 4), "f") * (1 + np.arange(16)[:, None])
"""
_TAPE = """
import tensorflow as tf
optimizer = keras.optimizers.SGD(0.01)
if {is_distributed}:
    optimizer = hvd.DistributedOptimizer(optimizer)
for rows in hvd.shard(x, batch_size=4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    hvd.allreduce(loss)  # for the log
"""
_FIT = """
model.compile("sgd", "mse")
model.fit(hvd.shard((x, x[:, :1]), batch_size=4), verbose=0)
"""
_FIT_THAT_FAILS = """
model.compile("sgd", "mse")
try:
    model.fit(x[:, :1], x[:, :1], verbose=0)
except ValueError as error:
    assert "incompatible" in str(error), error
else:
    raise AssertionError("it has not failed")
"""
_FIT_AGAIN = """
model.fit(x, x[:, :1], verbose=0)
"""
_TORCH = """
import torch
import hvd_keras.torch as hvd
hvd.init()
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
layer(torch.ones(2, 4)).sum().backward()
optimizer.step()
"""
_ALL_ROWS = """
import tensorflow as tf
optimizer = keras.optimizers.SGD(0.01)
for begin in 0, 4, 8, 12, 2:
    rows = x[begin:begin + 4] * (1 + {differs} * hvd.rank())
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
"""
_ALL_ROWS_OF_JAX = """
import jax, optax
import jax.numpy as jnp
import hvd_keras as hvd
import hvd_keras.jax as hvd_jax
hvd.init()
optimizer = hvd_jax.distribute(optax.sgd(0.1))
weights = jnp.ones(5)
state = optimizer.init(weights)
for step in range(5):
    updates, state = optimizer.update(weights * step + 1, state)
    weights = optax.apply_updates(weights, updates)
"""
# What a program for Horovod may do after its first step.
_OTHER_VALUES = """
import os, sys
import numpy as np
import keras, tensorflow as tf
import {package} as hvd
hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
is_traced, is_tape, broadcasts = {options}
if not is_tape:
    optimizer = hvd.DistributedOptimizer(optimizer)
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows) ** 2)
    if is_tape:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
if is_traced:
    step = tf.function(step)
def main():
    for i in range(5):
        step(tf.random.normal([4, 4], seed=10 * i + hvd.rank()))
        if broadcasts and i == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
main()
"""
_LOOP_OF_TORCH = """
import torch
import hvd_keras.torch as hvd
hvd.init()
torch.manual_seed({seed})
layer = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(layer.parameters(), lr=0.01), layer.named_parameters()
)
for i in range(5):
    optimizer.zero_grad()
    layer(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    if i == 0:
        {then}
"""
_BROADCAST = "hvd.broadcast_parameters(layer.state_dict(), root_rank=0)"
_BY_HAND = "layer.weight.data[:] = 1; layer.bias.data[:] = 1"
_OTHER_VALUES_OF_JAX = """
import jax, optax
import jax.numpy as jnp
import hvd_keras as hvd
import hvd_keras.jax as hvd_jax
hvd.init()
optimizer = hvd_jax.distribute(optax.sgd(0.1))
weights = {{"dense": jax.random.normal(jax.random.key(hvd.rank()), (5,))}}
state = optimizer.init(weights)
if {broadcasts}:
    weights = hvd_jax.broadcast_pytree(weights)
@jax.jit
def step(weights, state):
    gradients = jax.tree.map(lambda w: w * (1 + hvd.rank()), weights)
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state
for _ in range(5):
    weights, state = step(weights, state)
"""
_DDP = """
import os, torch
import hvd_keras.torch as hvd
hvd.init()
torch.distributed.init_process_group(
    "gloo", f"file://{os.environ['MEETING']}", rank=hvd.rank(), world_size=2
)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
torch.distributed.destroy_process_group()
"""
_OPTAX = """
import jax, optax
import jax.numpy as jnp
import hvd_keras as hvd
hvd.init()
optimizer = optax.sgd(0.1)
weights = jnp.ones(3)
updates, _ = optimizer.update(weights, optimizer.init(weights))
weights = optax.apply_updates(weights, updates)
"""
_PREDICTS = """
model.compile(hvd.DistributedOptimizer("sgd"), "mse")
model.predict(x, verbose=0)
model.evaluate(x, x[:, :1], verbose=0)
"""
_ALIKE = """
model.compile(hvd.DistributedOptimizer("sgd"), "mse")
x[:] = 1
model.fit(
    hvd.shard((x, x[:, :1]), global_batch_size=4),
    epochs=2,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
)
"""
_COLLECTIVES = """
import numpy as np
import hvd_keras as hvd
hvd.init()
hvd.allreduce(np.ones(3, "f"))
"""


_BY_ASSIGN = """
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
weight = tf.Variable([1.0])
for rows in hvd.shard(tf.data.Dataset.range(8), batch_size=4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(weight * tf.cast(rows, tf.float32))
    weight.assign(weight - 0.1 * tape.gradient(loss, weight))
"""
_BY_HAND_IN_TORCH = """
import torch
import hvd_keras.torch as hvd
hvd.init()
weight = torch.ones(3, requires_grad=True)
(weight ** 2).sum().backward()
with torch.no_grad():
    weight -= 0.1 * weight.grad
"""
_BY_HAND_IN_JAX = """
import jax, jax.numpy as jnp
import hvd_keras as hvd
hvd.init()
weight = jnp.ones(3)
weight -= 0.1 * jax.grad(lambda w: (w ** 2).sum())(weight)
"""


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (_BY_ASSIGN, "Received: `tape.gradient` at <string>:10"),
        (_BY_HAND_IN_TORCH, "Received: `backward` at <string>:7"),
        (_BY_HAND_IN_JAX, "Received: `jax.grad` at <string>:7"),
        (_MODEL + _TAPE.format(is_distributed=False), "the optimizer SGD at "),
        (_MODEL + _FIT, "`fit` at <string>:13"),
        (_MODEL + _FIT_THAT_FAILS + _FIT_AGAIN, "Received: `fit` at <string>:"),
        (_TORCH, "the optimizer SGD at <string>:9"),
        (_OPTAX, "`optax.apply_updates` at <string>:10"),
        (
            _MODEL
            + "hvd.broadcast_variables(model.variables, root_rank=0)"
            + _TAPE.format(is_distributed=False),
            "it reduced no gradient. Wrap the optimizer",
        ),
    ],
    ids=[
        *("assign", "torch by hand", "jax by hand"),
        *("tape", "fit", "fit again", "torch", "optax", "broadcast"),
    ],
)
def test_ranks_that_train_alone_are_told_of_at_the_end(
    code: str, what: str
) -> None:
    backend = "jax" if "import jax" in code else "tensorflow"
    outcome = jobs.run_python(2, code, KERAS_BACKEND=backend)
    assert outcome.status == 0, outcome.stderr
    (words,) = jobs.last_words(outcome)
    assert what in words
    assert "istribute" in words  # the cure


@pytest.mark.parametrize(
    ("num_ranks", "code", "what"),
    [
        (3, _MODEL + _ALL_ROWS.format(differs=0), "the optimizer SGD at "),
        (
            2,
            _LOOP_OF_TORCH.format(seed=1, then="pass"),
            "the optimizer SGD at <string>:14",
        ),
        (2, _ALL_ROWS_OF_JAX, "`optax.apply_updates` at <string>:13"),
    ],
    ids=["tape", "torch", "jax"],
)
def test_ranks_that_train_on_the_same_rows_are_told_of(
    num_ranks: int, code: str, what: str
) -> None:
    outcome = jobs.run_python(
        num_ranks,
        code,
        KERAS_BACKEND="jax" if code == _ALL_ROWS_OF_JAX else "tensorflow",
    )
    assert outcome.status == 0, outcome.stderr
    (words,) = jobs.last_words(outcome)
    assert "the same gradients to all 5 sums" in words
    assert what in words


def _other_values(
    package: str, *, traced: bool, tape: bool, broadcasts: bool = False
) -> str:
    return _OTHER_VALUES.format(
        package=package, options=(traced, tape, broadcasts)
    )


@pytest.mark.parametrize(
    ("code", "variable"),
    [
        (_other_values("hvd_keras", traced=True, tape=True), "dense/kernel'"),
        (
            _other_values("horovod.tensorflow", traced=True, tape=False),
            "dense/kernel'",
        ),
        (
            _OTHER_VALUES_OF_JAX.format(broadcasts=False),
            "params['dense']",
        ),
    ],
    ids=["tape", "Horovod", "jax"],
)
def test_ranks_that_keep_other_weights_are_told_of_at_the_end(
    code: str, variable: str
) -> None:
    backend = "jax" if "optax" in code else "tensorflow"
    options = ["--horovod-compat"] if "horovod" in code else []
    outcome = jobs.run_python(2, code, *options, KERAS_BACKEND=backend)
    assert outcome.status == 0, outcome.stderr
    (words,) = jobs.last_words(outcome)
    assert f"{variable}, whose values on rank 1 are not" in words
    assert "broadcast_" in words
    assert " at <string>:" in words


@pytest.mark.parametrize(
    "code",
    [
        _other_values("hvd_keras", traced=False, tape=True),
        _LOOP_OF_TORCH.format(seed="hvd.rank()", then="pass"),
    ],
    ids=["tape", "torch"],
)
def test_a_second_step_from_other_weights_fails(code: str) -> None:
    outcome = jobs.run_python(2, code)
    assert outcome.status == 1
    assert "verdict: all ranks raised MismatchError" in outcome.stderr
    assert "broadcast_" in outcome.stderr


_ONE_FOR_ALL = """
if hvd.rank() == 0:
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], verbose=0)
hvd.broadcast_variables(model.variables, 0)
"""


@pytest.mark.parametrize(
    ("num_ranks", "code"),
    [
        (2, _MODEL + _ONE_FOR_ALL),
        (2, _MODEL + _FIT_THAT_FAILS),
        (2, _MODEL + _TAPE.format(is_distributed=True)),
        (1, _MODEL + _TAPE.format(is_distributed=False)),
        (2, _MODEL + _ALL_ROWS.format(differs=1)),
        (2, _MODEL + _PREDICTS),
        (2, _MODEL + _ALIKE),
        (2, _COLLECTIVES),
    ],
    ids=[
        "one for all",
        "a caught error",
        "together",
        "one rank",
        "own rows",
        "inference",
        "alike",
        "calls",
    ],
)
def test_there_is_no_false_alarm(num_ranks: int, code: str) -> None:
    outcome = jobs.run_python(num_ranks, code, "--strict")
    assert outcome.status == 0, outcome.stderr
    assert not jobs.last_words(outcome)


@pytest.mark.parametrize(
    "code",
    [
        _other_values("hvd_keras", traced=True, tape=True, broadcasts=True),
        _other_values("hvd_keras", traced=False, tape=True, broadcasts=True),
        _other_values(
            "horovod.tensorflow", traced=True, tape=False, broadcasts=True
        ),
        _LOOP_OF_TORCH.format(seed="hvd.rank()", then=_BROADCAST),
        _LOOP_OF_TORCH.format(seed="hvd.rank()", then=_BY_HAND),
        _OTHER_VALUES_OF_JAX.format(broadcasts=True),
    ],
    ids=["traced", "eager", "Horovod", "torch", "by hand", "jax"],
)
def test_a_broadcast_after_the_first_step_is_no_alarm(code: str) -> None:
    backend = "jax" if "optax" in code else "tensorflow"
    options = ["--horovod-compat"] if "horovod" in code else []
    outcome = jobs.run_python(
        2, code, "--strict", *options, KERAS_BACKEND=backend
    )
    assert outcome.status == 0, outcome.stderr
    assert not jobs.last_words(outcome)


def test_gradients_that_torch_averages_are_no_alarm(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    outcome = jobs.run_python(2, _DDP, "--strict", MEETING=meeting)
    assert outcome.status == 0, outcome.stderr
    assert not jobs.last_words(outcome)


def test_strict_jobs_fail_at_a_warning() -> None:
    outcome = jobs.run_python(2, _MODEL + _FIT, "--strict")
    assert outcome.status == 1
    assert "raised StrictError: Each rank trains" in outcome.stderr


def test_strict_jobs_fail_if_ranks_have_trained_alone() -> None:
    outcome = jobs.run_python(2, _TORCH, "--strict")
    assert outcome.status == 1
    assert len(jobs.last_words(outcome)) == 1
