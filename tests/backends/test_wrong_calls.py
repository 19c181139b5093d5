"""A call that is wrong on one rank fails on all of them, on JAX and torch."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

if keras.backend.backend() == "jax":
    import jax
    import jax.numpy as xp

    import hvd_keras.jax as ops
else:
    import torch as xp

    import hvd_keras.torch as ops

LAST = hvd.size() - 1
FEW = 3.0  # seconds
ERRORS = (hvd.InvalidArgumentError, TypeError, ValueError)

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


def values() -> Any:
    return xp.ones(12)


CALLS = {
    "op": (
        lambda **how: ops.allreduce(values(), 77, **how),
        lambda **how: ops.allreduce(values(), **how),
    ),
    "factor": (
        lambda **how: ops.allreduce(values(), prescale_factor="x", **how),
        lambda **how: ops.allreduce(values(), **how),
    ),
    "dtype": (
        lambda **how: ops.allreduce(values() * 1j, **how),
        lambda **how: ops.allreduce(values(), **how),
    ),
    "no tensor": (
        lambda **how: ops.allreduce(None, **how),
        lambda **how: ops.allreduce(values(), **how),
    ),
    "empty group": (
        lambda **how: ops.grouped_allreduce([], **how),
        lambda **how: ops.grouped_allreduce([values()], **how),
    ),
    "root": (
        lambda **how: ops.broadcast(values(), 99, **how),
        lambda **how: ops.broadcast(values(), 0, **how),
    ),
    "rows": (
        lambda **how: ops.alltoall(xp.ones(12 * hvd.size() + 1), **how),
        lambda **how: ops.alltoall(xp.ones(12 * hvd.size()), **how),
    ),
    "scalar": (
        lambda **how: ops.allgather(values().sum(), **how),
        lambda **how: ops.allgather(values(), **how),
    ),
    "scatter": (
        lambda **how: ops.reducescatter(values().sum(), **how),
        lambda **how: ops.reducescatter(values(), **how),
    ),
}


def check_refused(wrong: Any, right: Any, text: str) -> None:
    """Calls `wrong` on the last rank alone: all get an error, soon."""
    begin = time.perf_counter()
    is_bad = hvd.rank() == LAST
    with pytest.raises(ERRORS) as caught:
        (wrong if is_bad else right)()
    assert time.perf_counter() - begin < FEW
    if not is_bad:
        assert isinstance(caught.value, hvd.InvalidArgumentError)
        assert f"rank {LAST} {text}" in str(caught.value)


def check_sums() -> None:
    for number in range(3):
        total = ops.allreduce(values() * (hvd.rank() + number), hvd.Sum)
        expected = sum(rank + number for rank in range(hvd.size()))
        np.testing.assert_array_equal(np.asarray(total), [expected] * 12)


@pytest.mark.parametrize("name", [None, "x"])
@pytest.mark.parametrize("kind", CALLS)
def test_all_ranks_are_told_of_a_wrong_call(kind: str, name: Any) -> None:
    wrong, right = CALLS[kind]
    how = {} if name is None else {"name": f"{kind}/{name}"}
    check_refused(
        lambda: wrong(**how), lambda: right(**how), "cannot take part"
    )
    check_sums()
    right(**how)


@pytest.mark.skipif(
    "keras.backend.backend() != 'jax'", reason="has no programs"
)
def test_all_ranks_are_told_of_a_program_that_was_not_built() -> None:
    wrong = jax.jit(
        lambda x: ops.broadcast(ops.allreduce(x, name="a"), 99, name="b")
    )
    right = jax.jit(
        lambda x: ops.broadcast(ops.allreduce(x, name="a"), 0, name="b")
    )

    def run(function: Any) -> Any:
        def call() -> None:
            with ops.typed_errors():
                jax.block_until_ready(function(values()))

        return call

    check_refused(run(wrong), run(right), "could not build its program")
    check_sums()
    run(right)()
