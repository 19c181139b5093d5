"""hvd_keras.jax works eagerly and in `jax.jit`, `jax.grad` and `jax.vmap`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import contrastive
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd
import hvd_keras.jax as hvd_jax

RANKS = [jax.jit, lambda function: function]


@pytest.fixture(params=RANKS, ids=["jit", "eager"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param


def mine(*shape: int) -> jax.Array:
    count = int(np.prod(shape))
    values = jnp.arange(count, dtype=jnp.float32) + 10.0 * hvd.rank()
    return values.reshape(shape)


def test_allreduce(run: Callable[..., Any]) -> None:
    for op, wanted in ((None, 5.0), (hvd.Sum, 10.0), (hvd.Max, 10.0)):
        name = f"allreduce.{op}"
        reduced = run(lambda x, o=op, n=name: hvd_jax.allreduce(x, o, name=n))
        factor = 2.0 if op == hvd.Sum else 1.0
        expected = np.arange(3) * factor + wanted
        np.testing.assert_array_equal(reduced(mine(3)), expected)
    scaled = run(
        lambda x: hvd_jax.allreduce(
            x, hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
        )
    )
    np.testing.assert_array_equal(scaled(mine(1)), [20.0])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32"]
)
def test_dtypes_and_groups(dtype: str) -> None:
    values = jnp.asarray([1, 0, 1]).astype(dtype)
    op = hvd.Max if dtype == "bool" else hvd.Sum
    for run in RANKS:
        (a, b) = run(lambda v: hvd_jax.grouped_allreduce([v, v[0]], op))(values)
        assert a.dtype == b.dtype == values.dtype
        factor = 1 if dtype == "bool" else 2
        np.testing.assert_array_equal(
            a.astype("float32"), np.array([1, 0, 1]) * factor
        )
        assert b.shape == ()


def test_other_collectives(run: Callable[..., Any]) -> None:
    rank = hvd.rank()
    gathered = run(hvd_jax.allgather)(mine(2, 1))
    np.testing.assert_array_equal(gathered[:, 0], [0, 1, 10, 11])
    sent = run(lambda x: hvd_jax.broadcast(x, 1))(mine(2))
    np.testing.assert_array_equal(sent, [10, 11])
    part = run(lambda x: hvd_jax.reducescatter(x, hvd.Sum))(mine(3))
    expected = [10, 12] if rank == 0 else [14]
    np.testing.assert_array_equal(part, expected)
    exchanged = run(hvd_jax.alltoall)(mine(4))
    own = np.array([0, 1, 10, 11]) + 2 * rank
    np.testing.assert_array_equal(exchanged, own)


def test_float8_is_moved_but_not_reduced(run: Callable[..., Any]) -> None:
    x = jnp.array([0.5, 2.0], "float8_e4m3fn") * hvd.rank()
    for move in (hvd_jax.alltoall, lambda x: hvd_jax.broadcast(x, 1)):
        assert run(move)(x).dtype == x.dtype
    rows = run(hvd_jax.allgather)(x).astype("float32")
    np.testing.assert_array_equal(rows, [0.0, 0.0, 0.5, 2.0])
    with pytest.raises(hvd.InvalidArgumentError, match="Received: float8"):
        run(hvd_jax.allreduce)(x)


def test_gradients(run: Callable[..., Any]) -> None:
    weights = mine(4) + 1.0
    rank = hvd.rank()
    both = [np.arange(4) + 1.0, np.arange(4) + 11.0]

    def gradient(collective: Callable[[Any], Any], rows: int = 4) -> Any:
        def loss(x: Any) -> Any:
            result = collective(x)
            return (result * weights[: len(result)]).sum()

        return run(jax.grad(loss))(jnp.ones(rows))

    total = sum(both)
    np.testing.assert_array_equal(
        gradient(lambda x: hvd_jax.allreduce(x, hvd.Sum)), total
    )
    np.testing.assert_array_equal(gradient(hvd_jax.allreduce), total / 2)
    np.testing.assert_array_equal(
        gradient(lambda x: hvd_jax.broadcast(x, 1)), rank * total
    )
    np.testing.assert_array_equal(
        gradient(hvd_jax.allgather, 2), total[2 * rank : 2 * rank + 2]
    )
    ends = np.concatenate([each[:2] for each in both])
    np.testing.assert_array_equal(gradient(hvd_jax.reducescatter), ends / 2)
    np.testing.assert_array_equal(
        gradient(lambda x: hvd_jax.reducescatter(x, hvd.Sum)), ends
    )
    np.testing.assert_array_equal(
        gradient(hvd_jax.alltoall),
        np.concatenate([each[2 * rank : 2 * rank + 2] for each in both]),
    )
    with pytest.raises(NotImplementedError, match="Sum or an Average"):
        gradient(lambda x: hvd_jax.allreduce(x, hvd.Max))


# Linear in `x`, an array of 4 elements.
LINEAR: dict[str, Callable[[Any], Any]] = {
    "allreduce": hvd_jax.allreduce,
    "sum": lambda x: hvd_jax.allreduce(
        x, hvd.Sum, prescale_factor=-0.5, postscale_factor=4.0
    ),
    "group": lambda x: jnp.concatenate(
        hvd_jax.grouped_allreduce([x[:3], 2 * x], hvd.Sum)
    ),
    "allgather": hvd_jax.allgather,
    "broadcast": lambda x: hvd_jax.broadcast(x, 1),
    "reducescatter": hvd_jax.reducescatter,
    "reducescatter of the sum": lambda x: hvd_jax.reducescatter(
        x, hvd.Sum, prescale_factor=-0.5, postscale_factor=4.0
    ),
    "alltoall": hvd_jax.alltoall,
}


@pytest.mark.thorough
def test_gradients_are_the_slopes_of_the_sum_of_losses() -> None:
    def loss(x: Any, name: str) -> Any:
        y = LINEAR[name](x)
        weights = jnp.arange(1.0, len(y) + 1) + hvd.rank()
        return (weights * (y * y + y)).sum()

    x = mine(4)
    expected = {name: jax.grad(loss)(x, name) for name in LINEAR}
    for rank in range(2):
        for i in (0, 3):
            # Quadratic functions: the slope is exact.
            step = np.zeros(4, np.float32)
            step[i] = 0.25 * (hvd.rank() == rank)
            for name in LINEAR:
                change = loss(x + step, name) - loss(x - step, name)
                slope = hvd_jax.allreduce(change * 2, hvd.Sum)
                if rank == hvd.rank():
                    assert slope == expected[name][i], name


def test_gradient_of_rows_that_differ_by_rank() -> None:
    rank = hvd.rank()

    def loss(x: Any) -> Any:
        y = hvd_jax.allgather(x)
        return (y * jnp.arange(len(y))).sum() * (rank + 1)

    gradient = jax.grad(loss)(mine(1 + 2 * rank))
    np.testing.assert_array_equal(gradient, [[0], [3, 6, 9]][rank])


def test_jax_checkpoint_keeps_reduced_arrays() -> None:
    def loss(x: Any) -> Any:
        for i in range(3):
            x = hvd_jax.allreduce(jnp.sin(x), name=f"checkpoint.{i}") ** 2
        return x.sum()

    def run(loss: Callable[[Any], Any]) -> tuple[Any, int]:
        before = hvd.stats()["num_requests"]
        results = jax.jit(jax.value_and_grad(loss))(mine(4))
        jax.block_until_ready(results)
        return results, hvd.stats()["num_requests"] - before

    (value, gradient), num_requests = run(loss)
    (same, again), num_again = run(jax.checkpoint(loss))
    assert value == same
    np.testing.assert_allclose(gradient, again, rtol=1e-6)
    assert num_requests == num_again == 6


def test_vmap_reduces_a_batch_at_once(run: Callable[..., Any]) -> None:
    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: (hvd_jax.allreduce(x, name="v") ** 2).sum())(
            x
        )

    before = hvd.stats()["num_requests"]
    reduced = jax.block_until_ready(run(jax.vmap(gradient))(mine(3, 2)))
    assert hvd.stats()["num_requests"] - before == 2
    expected = 2.0 * np.arange(6).reshape(3, 2) + 10.0
    np.testing.assert_array_equal(reduced, expected)
    rows = run(jax.vmap(hvd_jax.allgather))(mine(2, 1))
    np.testing.assert_array_equal(rows, [[0, 10], [1, 11]])


def test_vmap_does_not_mix_the_rows_of_adasum(run: Callable[..., Any]) -> None:
    def adasum(x: Any) -> Any:
        return hvd_jax.allreduce(x, hvd.Adasum)

    rows = jnp.array([[1.0, 0.0], [1.0, 2.0]])
    rows = rows.at[0].multiply(1.0 + hvd.rank()).at[1, hvd.rank()].set(0.0)
    expected = [adasum(row) for row in rows]
    np.testing.assert_allclose(run(jax.vmap(adasum))(rows), expected)


def test_a_jax_callback_gets_the_reduced_array() -> None:
    @jax.jit
    def program(x: Any) -> Any:
        y = hvd_jax.allreduce(x, hvd.Sum, name="before_callback")
        shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
        return jax.pure_callback(lambda v: np.asarray(v) + 1.0, shape, y)

    np.testing.assert_array_equal(program(mine(3)), np.arange(3) * 2 + 11.0)


def test_many_independent_collectives_in_one_program() -> None:
    @jax.jit
    def program(x: Any) -> Any:
        parts = [x + i for i in range(16)]
        names = [f"independent.{i}" for i in range(16)]
        return [
            hvd_jax.allreduce(part, hvd.Sum, name=name)
            for part, name in zip(parts, names, strict=True)
        ]

    for _ in range(25):
        results = program(mine(4))
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result, 2 * np.arange(4) + 10 + 2 * i)


def test_the_compression_between_hosts_goes_with_the_call() -> None:
    own = hvd.Compression.int8 if hvd.rank() == 1 else hvd.Compression.none
    with pytest.raises(hvd.MismatchError, match="int8 on rank 1"):
        hvd_jax.allreduce(mine(3), compression=own)

    def program(x: jax.Array) -> jax.Array:
        options = {"compression": hvd.Compression.int8}
        return hvd_jax.allreduce(x, name="packed", **options).sum()

    text = jax.jit(jax.grad(program)).trace(mine(3)).lower().as_text()
    calls = re.findall("custom_call @hvd_allreduce.*", text)
    assert len(calls) == 2  # the second one is of the gradient
    assert all("wire_format = 1" in call for call in calls)


@pytest.mark.usefixtures("bucket_of_each")
def test_only_the_end_of_a_collective_reads_its_start() -> None:
    """On a GPU the results are ready only after the end."""
    variables = [keras.Variable(np.ones(3, "float32")) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16
    )
    optimizer.build(variables)
    state = [[v.value for v in optimizer.variables], [mine(3), mine(3)]]

    def step(state: list[Any]) -> Any:
        return optimizer.stateless_apply(*state, [v.value for v in variables])

    traced = jax.jit(step).trace(state)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    starts = re.findall(r"(%\d+):2 = stablehlo.custom_call @hvd_allred", text)
    (ends,) = re.findall(r"@hvd_together\((.*?)\)", text)
    assert len(starts) == text.count("has_together = 1") == 2
    assert ends.split(", ") == [f"{name}#0" for name in sorted(starts)[::-1]]
    for name in starts:
        assert len(re.findall(rf"{name}#0\b", text)) == 1


def test_wrong_calls_raise() -> None:
    for call in (
        lambda: hvd_jax.allreduce(1.0, True),
        lambda: hvd_jax.allreduce(1.0, name=""),
        lambda: hvd_jax.grouped_allreduce([]),
        lambda: hvd_jax.broadcast(1.0, 7),
        lambda: hvd_jax.allgather(1.0),
        lambda: hvd_jax.alltoall(jnp.ones(3)),
    ):
        with pytest.raises(hvd.InvalidArgumentError):
            call()
    x = jnp.ones(3, jnp.complex64)
    for run in RANKS:
        with pytest.raises(hvd.InvalidArgumentError, match=r"'c'.*complex64"):
            run(lambda x: hvd_jax.broadcast(x, 0, name="c"))(x)


def test_mismatches_raise_mismatch_error() -> None:
    x = jnp.ones(3 + hvd.rank())
    words = r"\[3\] on rank 0; \[4\] on rank 1"
    with pytest.raises(hvd.MismatchError, match=words):
        hvd_jax.allreduce(x, name="odd")
    with (
        pytest.raises(hvd.MismatchError, match=words),
        hvd_jax.typed_errors(),
    ):
        jax.block_until_ready(jax.jit(hvd_jax.allreduce)(x))


@pytest.mark.parametrize("num_passes", [1, 2])
def test_a_custom_loop_equals_one_process(num_passes: int) -> None:
    """The user's own program calls `stateless_apply`."""
    x, y = small.data()

    def train(optimizer: Any, rows: slice) -> list[Any]:
        model = small.model()
        optimizer.build(model.trainable_variables)

        @jax.jit
        def step(weights: Any, slots: Any, x: Any, y: Any) -> Any:
            def loss(weights: Any) -> Any:
                outputs, _ = model.stateless_call(
                    weights, [v.value for v in model.non_trainable_variables], x
                )
                return jnp.mean((outputs - y) ** 2)

            gradients = jax.grad(loss)(weights)
            return optimizer.stateless_apply(slots, gradients, weights)

        weights = [v.value for v in model.trainable_variables]
        slots = [v.value for v in optimizer.variables]
        for batch in range(small.NUM_BATCHES):
            begin = batch * small.BATCH
            batch_x = x[begin : begin + small.BATCH][rows]
            batch_y = y[begin : begin + small.BATCH][rows]
            weights, slots = step(weights, slots, batch_x, batch_y)
        return [np.asarray(value) for value in weights]

    def make() -> Any:
        steps = None if num_passes == 1 else num_passes
        return keras.optimizers.Adam(
            0.05, global_clipnorm=0.1, gradient_accumulation_steps=steps
        )

    expected = train(make(), slice(None))
    share = small.BATCH // 2
    rows = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    before = hvd.stats()["num_requests"]
    values = train(hvd.DistributedOptimizer(make()), rows)
    num_requests = hvd.stats()["num_requests"] - before
    # The name, the gradients and the weights are compared once.
    assert num_requests <= small.NUM_BATCHES // num_passes + 3
    small.on_all_ranks(values)
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("loss_of_all", marks=pytest.mark.thorough),
        "loss_of_own_rows",
    ],
)
def test_contrastive_loss_equals_one_process(form: str) -> None:
    contrastive.check_equal_to_one_process(form, True, "hvd_keras.jax")


def test_profilers_find_a_call_by_its_name() -> None:
    mean = jax.jit(lambda x: hvd_jax.allreduce(x, name="my/tensor"))
    text = mean.lower(jnp.ones(3)).compile().as_text()
    assert 'op_name="jit(<lambda>)/HorovodAllreduce:my/tensor/ffi_call"' in text
