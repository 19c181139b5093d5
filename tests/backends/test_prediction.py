"""`hvd.predict` returns what one process predicts, on JAX and torch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd


class Batches(keras.utils.PyDataset):
    """Batches of 3 rows, with targets."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.x, self.y = small.data(num_rows)

    def __len__(self) -> int:
        return -(-len(self.x) // 3)

    def __getitem__(self, index: int) -> Any:
        rows = slice(3 * index, 3 * index + 3)
        return self.x[rows], self.y[rows]


def check(found: Any, model: keras.Model, x: np.ndarray) -> None:
    expected = model.predict(x, verbose=0)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_rows", [1, 53])
def test_arrays(num_rows: int) -> None:
    model, (x, _) = small.model(), small.data(num_rows)
    check(hvd.predict(model, x, batch_size=8), model, x)


def test_one_rank_gets_the_result() -> None:
    model, (x, _) = small.model(), small.data(9)
    found = hvd.predict(model, x, root_rank=1)
    if hvd.rank() == 1:
        check(found, model, x)
    else:
        assert found is None


@pytest.mark.parametrize("num_rows", [3, 24, 53])
def test_a_py_dataset(num_rows: int) -> None:
    model, data = small.model(), Batches(num_rows)
    check(hvd.predict(model, data), model, data.x)


def test_what_shard_returned() -> None:
    model, (x, y) = small.model(), small.data(53)
    data = hvd.shard((x, y), batch_size=8, policy="pad")
    check(hvd.predict(model, data), model, x)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras has this elsewhere"
)
def test_several_steps_per_execution() -> None:
    model, (x, _) = small.model(), small.data(53)
    model.compile(steps_per_execution=3)
    check(hvd.predict(model, x, batch_size=4), model, x)
    assert model.steps_per_execution == 3
