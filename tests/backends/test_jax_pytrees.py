"""Training on JAX without Keras: pytrees and optimizers of optax."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hvd_keras as hvd
import hvd_keras.jax as hvd_jax


class Transformation(NamedTuple):
    """What optax calls a gradient transformation."""

    init: Any
    update: Any


def momentum(rate: float) -> Any:
    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        del params
        state = jax.tree.map(lambda s, g: 0.9 * s + g, state, gradients)
        return jax.tree.map(lambda s: -rate * s, state), state

    init = lambda params: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
    return Transformation(init, update)


def adam(rate: float) -> Any:
    return pytest.importorskip("optax").adam(rate)


def scaled(rate: float) -> Any:
    optax = pytest.importorskip("optax")
    return optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(rate), optax.scale(2.0)
    )


def params_of(seed: int) -> Any:
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "first": [jax.random.normal(keys[0], (4, 8)), jnp.zeros(8)],
        "last": {"kernel": jax.random.normal(keys[1], (8, 1))},
    }


def loss(params: Any, x: Any) -> Any:
    kernel, bias = params["first"]
    y = jnp.tanh(x @ kernel + bias) @ params["last"]["kernel"]
    return jnp.mean((y[:, 0] - x.sum(1)) ** 2)


def train(optimizer: Any, params: Any, rows: Any, *, jit: bool) -> Any:
    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    step = jax.jit(step) if jit else step
    state = optimizer.init(params)
    for number in range(5):
        x = jax.random.normal(jax.random.key(number), (12, 4))
        params, state = step(params, state, rows(x))
    return params, state


def own(x: Any) -> Any:
    return x.reshape(hvd.size(), -1, *x.shape[1:])[hvd.rank()]


@pytest.mark.parametrize("make", [momentum, adam, scaled])
@pytest.mark.parametrize("jit", [False, True])
def test_equals_one_process(make: Any, jit: bool) -> None:
    wanted = train(make(0.1), params_of(0), lambda x: x, jit=jit)
    optimizer = hvd_jax.distribute(make(0.1))
    assert type(optimizer) is type(make(0.1))
    params = hvd_jax.broadcast_pytree(params_of(hvd.rank()))
    found = train(optimizer, params, own, jit=jit)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5),
        found,
        wanted,
    )


def test_gradients_are_reduced_in_one_call() -> None:
    optimizer = hvd_jax.distribute(momentum(0.1), hvd.Sum)
    gradients = params_of(3)
    state = optimizer.init(gradients)
    optimizer.update(gradients, state)  # it compares what `init` has got
    before = hvd.stats()["num_requests"]
    updates, _ = optimizer.update(gradients, state)
    assert hvd.stats()["num_requests"] - before == 1
    jax.tree.map(
        lambda u, g: np.testing.assert_allclose(u, -0.1 * hvd.size() * g, 1e-5),
        updates,
        gradients,
    )
    narrow = hvd_jax.distribute(momentum(1.0), compression=hvd.Compression.bf16)
    ones = {"x": jnp.full(2, 1 + 2.0**-10)}
    updates, _ = narrow.update(ones, narrow.init(ones))
    assert updates["x"].tolist() == [-1, -1]


@pytest.mark.parametrize("jit", [False, True])
def test_allreduce_of_a_pytree(jit: bool) -> None:
    reduce = jax.jit(hvd_jax.allreduce) if jit else hvd_jax.allreduce
    tree = {"a": jnp.arange(2.0) * hvd.rank(), "b": (jnp.ones(1), None)}
    found = reduce(tree)
    mean = (hvd.size() - 1) / 2
    assert found["a"].tolist() == [0, mean]
    assert found["b"][0].tolist() == [1]
    assert found["b"][1] is None
    for empty in ({}, None):  # else other ranks would wait for this one
        with pytest.raises(hvd.InvalidArgumentError, match="one or more"):
            hvd_jax.allreduce(empty)
    gradient = jax.grad(
        lambda tree: hvd_jax.allreduce(tree, hvd.Sum)["a"].sum()
    )({"a": jnp.ones(2)})
    assert gradient["a"].tolist() == [hvd.size()] * 2


def test_broadcast_of_a_pytree() -> None:
    rank = hvd.rank()
    tree = {
        "step": rank,
        "rate": 0.5 * rank,
        "array": jnp.full((2, 1), rank, jnp.bfloat16),
        "key": jax.random.key(rank),
        "raw key": jax.random.PRNGKey(rank),
        "nothing": None,
        "array of NumPy": np.arange(3) + rank,
    }
    found = hvd_jax.broadcast_pytree(tree, root_rank=1)
    assert int(found["step"]) == 1
    assert float(found["rate"]) == 0.5
    assert found["array"].dtype == jnp.bfloat16
    assert found["array"].tolist() == [[1], [1]]
    wanted = jax.random.normal(jax.random.key(1), 2)
    assert jax.random.normal(found["key"], 2).tolist() == wanted.tolist()
    assert jax.random.normal(found["raw key"], 2).tolist() == wanted.tolist()
    assert found["nothing"] is None
    assert found["array of NumPy"].tolist() == [1, 2, 3]
    inside = jax.jit(lambda x: hvd_jax.broadcast_pytree({"x": x}, 1))
    assert inside(jnp.float32(rank))["x"] == 1
    assert hvd_jax.broadcast_pytree([]) == []


def test_barrier() -> None:
    hvd_jax.barrier()
    hvd_jax.barrier(name="one")
    with pytest.raises(hvd.InvalidArgumentError, match="outside of"):
        jax.jit(lambda: hvd_jax.barrier())()


def test_wrong_calls_raise() -> None:
    for call in (
        lambda: hvd_jax.distribute("adam"),
        lambda: hvd_jax.broadcast_pytree([jnp.ones(1)], 99),
        lambda: hvd_jax.broadcast_pytree([jnp.ones(1)], name=""),
    ):
        with pytest.raises(hvd.InvalidArgumentError):
            call()
    with pytest.raises(TypeError, match="compression"):
        hvd_jax.distribute(momentum(1.0), compression="fp16")


def test_pytrees_that_differ_are_told_on_all_ranks() -> None:
    tree = {"a": jnp.ones(2 + (hvd.rank() == 0))}
    with pytest.raises(hvd.MismatchError, match="shape"):
        hvd_jax.broadcast_pytree(tree)
