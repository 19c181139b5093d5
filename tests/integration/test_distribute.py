"""`hvdrun --distribute` trains programs that know nothing of ranks."""

from __future__ import annotations

import pathlib

import distribute_table
import jobs
import pytest
from selection import thorough_except


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "tensorflow", "torch")
)
def test_programs_end_as_in_one_process(
    backend: str, tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    one = distribute_table.in_one_process(backend, tmp_path)
    assert {name.partition(".")[0] for name in one} <= set(
        distribute_table.TITLES
    )
    for num_ranks in (2, 3) if pytestconfig.getoption("thorough") else (3,):
        ours = distribute_table.distributed(num_ranks, backend, tmp_path)
        found = distribute_table.gaps(ours, one)
        assert distribute_table.wrong(found) == {}


KERAS_DISTRIBUTION = """
import keras, numpy as np
from keras.distribution import DataParallel, DeviceMesh, LayoutMap
keras.distribution.initialize()
devices = keras.distribution.list_devices()
mine = keras.distribution.DataParallel()
assert keras.distribution.distribution() is None
print(len(devices), keras.distribution.get_device_count(), mine.num_processes)
assert mine.num_model_replicas == len(devices)
with mine.scope():
    assert keras.distribution.distribution() is mine
assert keras.distribution.distribution() is None
mesh = DeviceMesh((1,), ["batch"], devices[:1])
for wrong in (
    DataParallel(mesh),
    keras.distribution.ModelParallel(layout_map=LayoutMap(mesh)),
):
    try:
        keras.distribution.set_distribution(wrong)
    except (NotImplementedError, ValueError) as error:
        print(type(error).__name__, error)
mine.auto_shard_dataset = {shares}
keras.distribution.set_distribution(mine)
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(42, 3)).astype("float32")
if not mine.auto_shard_dataset:
    x = x[mine.data_shard_id :: mine.num_processes]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, x[:, :1], batch_size={batch}, verbose=2, shuffle=False)
print("sum", float(np.abs(model.get_weights()[0]).sum()))
"""


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "tensorflow", "jax")
)
def test_keras_distribution_means_the_ranks(backend: str) -> None:
    sums = {}
    for shares, batch in ((True, 14), (False, 7)):
        code = KERAS_DISTRIBUTION.format(shares=shares, batch=batch)
        job = jobs.run_python(
            2,
            code,
            "--keras-distribution",
            "--no-tag",
            KERAS_BACKEND=backend,
            HVD_DISTRIBUTE_BATCH="all",
        )
        assert job.status == 0, job.stderr[-3000:]
        lines = job.stdout.splitlines()
        assert lines.count("2 2 2") == 2
        for words in ("one device for each of the 2 ranks", "ModelParallel"):
            assert sum(words in line for line in lines) == 2
        found = {line for line in lines if line.startswith("sum")}
        assert len(found) == 1
        sums[shares] = float(found.pop().split()[1])
    assert sums[True] == pytest.approx(sums[False], rel=1e-5)


def test_an_elastic_job_is_refused() -> None:
    job = jobs.run_python(2, "", "--distribute", "--min-np", "1")
    assert job.status != 0
    assert "need a fixed number of ranks" in job.stderr


MIRRORED = """
import numpy as np, tensorflow as tf, keras
device = tf.config.LogicalDeviceConfiguration()
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [device] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
"""


def test_a_model_on_several_devices_is_refused() -> None:
    job = jobs.run_python(2, MIRRORED, "--distribute")
    assert job.status == 1
    assert "Remove the scope of `tf.distribute`" in job.stderr
    assert "MirroredStrategy with 2 devices" in job.stderr


STATEFUL = """
import keras, numpy as np
x = np.ones((8, 5, 3), "float32")
writer = keras.Sequential([keras.layers.GRU(2, stateful=True)])
print("shape", writer.predict(x[:1], verbose=0).shape)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(x[:0, 0], x[:0, 0, :1], verbose=0)
except ValueError as error:
    print(error)
model = keras.Sequential([keras.layers.GRU(4, stateful=True, name="kept")])
model.compile("sgd", "mse")
model.fit(x, x[:, 0, :1], batch_size=4, verbose=0)
"""


def test_states_of_rows_and_no_rows_are_refused() -> None:
    job = jobs.run_python(2, STATEFUL, "--distribute")
    assert job.status == 1
    assert "shape (1, 2)" in job.stdout
    assert "Received: 0 rows" in job.stdout
    assert "`stateful=True` keeps a state for each row" in job.stderr
    assert "the layers kept" in job.stderr


DRAWS = """
import keras, numpy as np

IS_JAX = keras.backend.backend() == "jax"

def drawn(shape, seeds):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf
        return tf.random.normal(shape)
    if backend == "jax":
        return keras.random.normal(shape, seed=seeds)
    import torch
    return torch.randn(tuple(shape))

class Plain(keras.Model):
    def __init__(self, noise=None):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.noise = noise
        self.seeds = keras.random.SeedGenerator(1)
    def noisy(self, x):
        return x + 0.1 * self.noise(keras.ops.shape(x), self.seeds)
    def call(self, x, training=False):
        is_here = IS_JAX and self.noise and training
        return self.dense(self.noisy(x) if is_here else x)
    def train_step(self, *args):
        *state, (x, y) = args
        if self.noise and not IS_JAX:
            x = self.noisy(x)
        return super().train_step(*state, (x, y))

def ended(noise):
    keras.utils.set_random_seed(5)
    model = Plain(noise)
    model.compile("sgd", "mse")
    x = np.linspace(0, 1, 24, dtype="float32").reshape(8, 3)
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    np.random.normal(size=3)  # in no step

ended(None)
{then}
"""


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "tensorflow")
)
def test_draws_in_steps_are_told(backend: str) -> None:
    own = {
        "tensorflow": "tf.random.normal",
        "jax": "keras.random.normal",
        "torch": "torch.randn",
    }[backend]
    then = "ended(drawn); ended(drawn)"
    job = _drawing(backend, then)
    assert job.count("steps of `fit` draw random numbers") == 1
    assert f"by `{own}`: each rank draws its own" in job
    then = "ended(lambda shape, _: keras.random.normal(shape, seed=3))"
    job = _drawing(backend, then)
    assert job.count("steps of `fit` draw random numbers") == 1
    assert "by `keras.random.normal`: all 2 ranks draw the same ones" in job


def test_seeds_that_keras_draws_are_none_of_a_step() -> None:
    then = """
import tensorflow as tf
ended(lambda shape, _: tf.keras.backend.random_normal(shape))
"""
    job = _drawing("tensorflow", then)
    assert "np.random.randint" not in job
    assert "by `tf.random.normal`: each rank draws its own" in job


def _drawing(backend: str, then: str) -> str:
    code = DRAWS.format(then=then)
    job = jobs.run_python(
        2, code, "--distribute", seconds=180, KERAS_BACKEND=backend
    )
    assert job.status == 0, job.stderr[-3000:]
    return job.stderr
