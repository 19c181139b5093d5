"""A rank that is out of data lets the others go on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd

BACKEND = keras.backend.backend()
hvd_backend = importlib.import_module(f"hvd_keras.{BACKEND}")


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    if BACKEND != "jax":
        pytest.skip("only JAX has programs")
    import jax

    return jax.jit(function)


def numbers(value: Any) -> Any:
    return keras.ops.convert_to_numpy(value).tolist()


@pytest.mark.parametrize("compiled", [as_it_is, jitted])
@pytest.mark.parametrize("over_active", [False, True])
def test_joined_ranks_change_nothing(
    compiled: Callable[..., Any], over_active: bool
) -> None:
    rank, size = hvd.rank(), hvd.size()
    name = f"step {compiled.__name__} {over_active}"

    def reduced(x: Any) -> list[Any]:
        return [
            hvd_backend.allreduce(x, op, name=f"{name} {op}")
            for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Average)
        ]

    step = compiled(reduced)
    for i in range(rank + 1):  # rank r has r + 1 batches
        active = list(range(i, size))
        found = step(keras.ops.full((2,), rank + 1.0))
        total = float(sum(r + 1 for r in active))
        mean = total / (len(active) if over_active else size)
        wanted = [total, i + 1.0, size, mean]
        for result, value in zip(found, wanted, strict=True):
            np.testing.assert_allclose(numbers(result), [value] * 2)
    last = hvd_backend.join(average_over_active=over_active)
    assert last in range(size)
    assert hvd.allgather_object(last) == [last] * size


def test_nameless_calls_meet_after_a_join() -> None:
    x = keras.ops.ones((2,))
    for _ in range(hvd.rank() + 1):
        hvd_backend.allreduce(x)
    hvd_backend.join()
    for _ in range(2):
        total = hvd_backend.allreduce(x * (hvd.rank() + 1.0), hvd.Sum)
        assert numbers(total)[0] == sum(range(hvd.size() + 1))


def test_other_collectives_fail_on_the_waiting_ranks() -> None:
    if hvd.rank() != 0:
        with pytest.raises(hvd.MismatchError, match="join"):
            hvd_backend.allgather(keras.ops.ones((2,)), name="other")
    hvd_backend.join()
    hvd_backend.allgather(keras.ops.ones((2,)), name="other")


def test_an_optimizer_goes_on_with_the_ranks_that_have_batches() -> None:
    rank, size = hvd.rank(), hvd.size()
    weight = keras.Variable(np.zeros(2), dtype="float32")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for _ in range(rank + 1):
        optimizer.apply([keras.ops.full((2,), rank + 1.0)], [weight])
    last = hvd_backend.join()
    hvd.broadcast_variables([weight], last)
    steps = [sum(r + 1 for r in range(i, size)) / size for i in range(last + 1)]
    (found,) = small.on_all_ranks([keras.ops.convert_to_numpy(weight)])
    np.testing.assert_allclose(found, [-sum(steps)] * 2, rtol=1e-6)


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX has programs")
def test_join_waits_for_programs_and_is_refused_in_one() -> None:
    import jax

    @jax.jit
    def step(x: Any) -> Any:
        y = jax.lax.fori_loop(0, 4, lambda i, y: y @ x / 1000.0, x)
        return hvd_backend.allreduce(y, hvd.Sum, name="later")

    x = jax.numpy.ones((1000, 1000))
    results = [step(x) for _ in range(hvd.rank() + 1)]
    hvd_backend.join()  # the last one has not ended
    wanted = [hvd.size() - i for i in range(hvd.rank() + 1)]
    assert [float(result[0, 0]) for result in results] == wanted
    with pytest.raises(hvd.InvalidArgumentError, match="outside of"):
        jax.jit(lambda x: x + hvd_backend.join())(1.0)
