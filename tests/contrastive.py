"""A model that learns from the contrastive losses in docs/collectives.md."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

_PAGE = pathlib.Path(__file__).parents[1] / "docs" / "collectives.md"
BATCH = 12  # rows of a global batch; 1, 2, 3 and 4 ranks take equal shares
NUM_BATCHES = 3
FORMS = ["loss_of_all", "loss_of_own_rows"]


def losses(module: str = "hvd_keras") -> dict[str, Callable[..., Any]]:
    """Returns the functions of the page, with `allgather` of a module."""
    found = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.S)
    (code,) = [each for each in found if "def loss_of_all" in each]
    name = "from hvd_keras import allgather"
    assert name in code
    namespace: dict[str, Any] = {}
    exec(code.replace(name, f"from {module} import allgather"), namespace)
    return namespace


@keras.saving.register_keras_serializable("tests")
class Scale(keras.layers.Layer):
    """Multiplies by a number that is learned."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


class Matching(keras.Model):
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return self.loss_of_pairs(*y_pred)


def trained(
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    rows: slice,
    *,
    jit_compile: bool = False,
) -> list[np.ndarray]:
    """Returns the weights after training on some rows of each batch."""
    images, texts = keras.Input((5,)), keras.Input((4,))
    unit = keras.layers.UnitNormalization()
    a = Scale()(unit(keras.layers.Dense(3)(images)))
    b = unit(keras.layers.Dense(3)(texts))
    model = Matching([images, texts], [a, b])
    generator = np.random.default_rng(5)
    model.set_weights([generator.normal(size=w.shape) for w in model.weights])
    model.loss_of_pairs = loss
    model.compile(optimizer, jit_compile=jit_compile)
    data = [
        generator.normal(size=(NUM_BATCHES, BATCH, n)).astype("f4")
        for n in (5, 4)
    ]
    share = [each[:, rows].reshape(-1, each.shape[-1]) for each in data]
    batch_size = len(share[0]) // NUM_BATCHES
    model.fit(share, batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights()


@functools.cache
def one_process(module: str) -> list[np.ndarray]:
    match = losses(module)["matching_loss"]
    return trained(
        lambda a, b: (match(a, b) + match(b, a)) / 2,
        keras.optimizers.SGD(0.5),
        slice(None),
    )


def all_ranks(
    form: str, *, jit_compile: bool = False, module: str = "hvd_keras"
) -> list[np.ndarray]:
    share = BATCH // hvd.size()
    return trained(
        losses(module)[form],
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        slice(hvd.rank() * share, (hvd.rank() + 1) * share),
        jit_compile=jit_compile,
    )


def check_equal_to_one_process(
    form: str, jit_compile: bool, module: str = "hvd_keras"
) -> None:
    values = all_ranks(form, jit_compile=jit_compile, module=module)
    for value, wanted in zip(values, one_process(module), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
