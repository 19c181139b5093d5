"""`hvd.barrier` on JAX and torch, which need no TensorFlow."""

from __future__ import annotations

import sys
import time

import keras
import pytest

import hvd_keras as hvd

SECONDS = 0.3


@pytest.mark.parametrize("name", [None, "a name"])
def test_waits_for_the_last_rank(name: str | None) -> None:
    hvd.barrier(name=name)
    begin = time.monotonic()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(SECONDS)
    hvd.barrier(name=name)
    assert time.monotonic() - begin > 0.9 * SECONDS
    assert "tensorflow" not in sys.modules


def test_bad_arguments_raise() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="name"):
        hvd.barrier(name="")
    with pytest.raises(hvd.InvalidArgumentError, match="process_set"):
        hvd.barrier(process_set=hvd.ProcessSet([0]))


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX")
def test_a_program_is_ended_before_and_holds_none() -> None:
    import jax
    import jax.numpy as jnp

    import hvd_keras.jax as hvd_jax

    with pytest.raises(hvd.InvalidArgumentError, match="outside of"):
        jax.jit(lambda: hvd.barrier())()
    before = hvd.stats()["num_requests"]
    total = jax.jit(lambda a: hvd_jax.allreduce(a, hvd.Sum, name="total"))
    total(jnp.ones(()))
    hvd.barrier()
    assert hvd.stats()["num_requests"] - before == 2


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="needs torch")
def test_a_compiled_function_waits() -> None:
    import torch

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        hvd.barrier()
        return x * 2

    before = hvd.stats()["num_requests"]
    assert step(torch.ones(2)).tolist() == [4, 4]
    assert step(torch.ones(2)).tolist() == [4, 4]
    assert hvd.stats()["num_requests"] - before == 2
