"""Models saved by a distributed run load in a process without hvd_keras."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._gradients.distributed_class import is_distributed

optimizers = keras.optimizers


@pytest.fixture(autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def compiled(optimizer: optimizers.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def fit(model: keras.Model) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
    model.fit(x, x[:, :2], verbose=0, epochs=2)


LOAD_WITHOUT_US = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hvd_keras":
            raise ImportError("hvd_keras is not installed here")
sys.meta_path.insert(0, Blocked())
import keras
import numpy as np
for name in sys.argv[1:]:
    model = keras.models.load_model(name + ".keras")
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    assert type(optimizer) is getattr(keras.optimizers, name), optimizer
    assert int(optimizer.iterations) == 2
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert int(optimizer.iterations) == 3
assert not any(name.startswith("hvd_keras") for name in sys.modules)
"""


SAVED: dict[str, Callable[[], Any]] = {
    "Adam": lambda: optimizers.Adam(0.01),
    "SGD": lambda: optimizers.SGD(0.01, momentum=0.9),
    "AdamW": lambda: optimizers.AdamW(
        optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    ),
    "RMSprop": lambda: optimizers.LossScaleOptimizer(optimizers.RMSprop(0.01)),
}


def test_saved_models_load_without_hvd_keras(tmp_path: pathlib.Path) -> None:
    models = {}
    for name, make in SAVED.items():
        models[name] = compiled(hvd.DistributedOptimizer(make()))
        fit(models[name])
        models[name].save(tmp_path / f"{name}.keras")
    # Not in our directory: Python would put it on the path.
    subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT_US, *SAVED],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )

    for name, model in models.items():
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        assert not is_distributed(loaded.optimizer)
        for ours, theirs in zip(
            loaded.optimizer.variables, model.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        hvd.DistributedOptimizer(loaded.optimizer)
        fit(loaded)
        fit(model)
        for ours, theirs in zip(
            loaded.get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
