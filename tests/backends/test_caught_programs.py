"""Programs that catch errors stay right, on JAX and torch."""

from __future__ import annotations

import caught_programs
import keras
import pytest

import hvd_keras as hvd

if keras.backend.backend() == "jax":
    from jax.numpy import asarray as tensor

    import hvd_keras.jax as ops
else:
    from torch import as_tensor as tensor

    import hvd_keras.torch as ops

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

RUNNER = caught_programs.Runner(ops, tensor)


@pytest.mark.parametrize("seed", caught_programs.seeds(10))
def test_a_program_with_caught_errors(seed: int) -> None:
    RUNNER.run(caught_programs.draw(seed, hvd.size()))
