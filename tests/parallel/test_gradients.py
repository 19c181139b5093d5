"""Gradients of collectives equal the slopes of the sum of the ranks' losses.

A rank's loss is its own weight times a polynomial of the collective's output.
One element of one rank's input moves by a small step up and down, which gives
the true derivative. `hvd_keras.compat` has Horovod's multiples of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from conftest import run_eagerly, run_in_function, run_in_graph

import hvd_keras as hvd
from hvd_keras import compat

pytestmark = pytest.mark.thorough(2, 3)

STEP = 2.0**-8
Collective = Callable[[tf.Tensor, hvd.ProcessSet], tf.Tensor]


def true(size: int) -> float:
    return 1.0


def averaged(size: int) -> float:
    return 1.0 / size


def multiplied(size: int) -> float:
    return float(size)


def scaled(op: hvd.ReduceOp, kind: str) -> Collective:
    def collective(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
        return getattr(hvd, kind)(
            x,
            op,
            prescale_factor=-0.5,
            postscale_factor=3.0,
            process_set=process_set,
        )

    return collective


def plain(op: hvd.ReduceOp, kind: str, module: Any = hvd) -> Collective:
    return lambda x, s: getattr(module, kind)(x, op=op, process_set=s)


def grouped(op: hvd.ReduceOp, kind: str, module: Any = hvd) -> Collective:
    """Adds a member without a gradient and one that the loss ignores."""

    def collective(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
        others = [tf.constant([1, 2]), x * 2]
        members = [x * x, others[0], x, others[1]]
        a, _, b, _ = getattr(module, f"grouped_{kind}")(
            members, op=op, process_set=process_set
        )
        return tf.concat([a, b], 0)

    return collective


def gathered(module: Any) -> Collective:
    """The ranks give different numbers of rows."""

    def collective(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
        rows = x[: 3 - process_set.rank() % 2]
        return module.allgather(rows, process_set=process_set)

    return collective


def gathered_as_group(module: Any) -> Collective:
    def collective(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
        a, _, b = module.grouped_allgather(
            [x, tf.constant([1]), x[:1]], process_set=process_set
        )
        return tf.concat([a, b], 0)

    return collective


def sent(module: Any) -> Collective:
    return lambda x, process_set: module.broadcast(
        x, process_set.ranks[-1], process_set=process_set
    )


def exchanged(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
    size = process_set.size()
    rows = tf.tile(x, [size])
    return hvd.alltoall(rows, process_set=process_set)


def exchanged_unevenly(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
    """Sends all rows but the first to the next rank."""
    splits = np.zeros(process_set.size(), np.int32)
    splits[process_set.rank()] = 1
    splits[(process_set.rank() + 1) % process_set.size()] += 2
    return hvd.alltoall(x, splits, process_set=process_set)[0]


COLLECTIVES: dict[str, tuple[Collective, Callable[[int], float]]] = {
    "allgather": (gathered(hvd), true),
    "grouped_allgather": (gathered_as_group(hvd), true),
    "broadcast": (sent(hvd), true),
    "alltoall": (exchanged, true),
    "alltoall with splits": (exchanged_unevenly, true),
    "allgather as Horovod": (gathered(compat), averaged),
    "grouped_allgather as Horovod": (gathered_as_group(compat), averaged),
    "broadcast as Horovod": (sent(compat), averaged),
    "reducescatter as Horovod": (
        plain(hvd.Sum, "reducescatter", compat),
        multiplied,
    ),
    "grouped_reducescatter as Horovod": (
        grouped(hvd.Average, "reducescatter", compat),
        multiplied,
    ),
    "reducescatter of the maximum as Horovod": (
        plain(hvd.Max, "reducescatter", compat),
        true,
    ),
}
for _op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
    for _make in (plain, scaled, grouped):
        for _kind in ("allreduce", "reducescatter"):
            COLLECTIVES[f"{_make.__name__} {_kind} {_op.name}"] = (
                _make(_op, _kind),
                true,
            )


def distinct_values(rank: int) -> np.ndarray:
    """Returns 3 elements that differ by at least 0.25 between ranks."""
    return np.array([1.0, -2.0, 0.5]) + rank * np.array([0.25, -0.5, 0.75])


def weighted_loss(y: tf.Tensor, rank: int) -> tf.Tensor:
    weight = tf.cast(tf.range(tf.size(y)) + 1 + rank, y.dtype)
    return tf.reduce_sum(weight * (y * y + y))


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_gradient_is_the_slope(rank, process_set, name: str) -> None:
    collective, convention = COLLECTIVES[name]
    ranks = process_set.ranks

    def loss(x: tf.Tensor) -> tf.Tensor:
        return weighted_loss(collective(x, process_set), rank)

    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for _ in range(2):  # the second call gives the same
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            results.append(tape.gradient(value, x))
        return results

    x = distinct_values(rank)
    first, second = run_eagerly(gradients, x)
    np.testing.assert_array_equal(first, second)
    for run in (run_in_function, run_in_graph):
        for again in run(gradients, x):
            np.testing.assert_allclose(again, first, rtol=1e-12)
    for moving in ranks:
        for i in range(3):
            step = np.zeros(3)
            step[i] = STEP if rank == moving else 0.0
            change = loss(tf.constant(x + step)) - loss(tf.constant(x - step))
            slope = hvd.allreduce(
                change / (2 * STEP), hvd.Sum, process_set=process_set
            )
            if rank == moving:
                expected = convention(len(ranks)) * slope.numpy()
                # Squares of products have degree four, so slopes are inexact.
                assert first[i] == pytest.approx(expected, 2e-3, 1e-3)


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max])
@pytest.mark.parametrize("kind", ["allreduce", "reducescatter"])
def test_ties_share_the_gradient(run, rank, size, op, kind) -> None:
    """The first element ties on all ranks; rank 0 alone has the second."""
    sign = 1 if op == hvd.Max else -1
    x = np.array([7.0, sign * (5.0 - rank)], np.float32)

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(hvd, kind)(x, op)
            value = tf.reduce_sum(y) * (rank + 1.0)
        return tape.gradient(value, x)

    total = np.full(2, size * (size + 1) / 2)
    if kind == "reducescatter":  # the ranks that got the two rows
        total = np.array([1, 2 if size > 1 else 1])
    expected = [total[0] / size, total[1] if rank == 0 else 0]
    np.testing.assert_allclose(run(gradient, x), expected, rtol=1e-6)


@pytest.mark.parametrize("num_zeros", [0, 1, 2])
def test_gradient_of_a_product_with_zeros(run, rank, size, num_zeros) -> None:
    def value(r: int) -> float:
        return 0.0 if r < num_zeros else r + 2.0

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, hvd.Product)
        return tape.gradient(y, x)

    others = np.prod([value(r) for r in range(size) if r != rank])
    assert run(gradient, np.float32(value(rank))) == size * others


def test_second_gradient_of_a_product(rank, size) -> None:
    """Differentiates the sum over ranks of size * (the others' product)."""
    x = tf.constant(rank + 2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = hvd.allreduce(x, hvd.Product, name="second of a product")
        first = inner.gradient(y, x)
    values = [r + 2.0 for r in range(size)]
    expected = size * sum(
        np.prod([v for s, v in enumerate(values) if s not in (r, rank)])
        for r in range(size)
        if r != rank
    )
    second = outer.gradient(first, x)
    assert (0.0 if second is None else second.numpy()) == expected


def test_second_gradient_of_a_sum(rank, size) -> None:
    x = tf.constant(1.0 + rank)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = hvd.allreduce(x * x, hvd.Sum, name="second")
        first = inner.gradient(y, x)
    # Each rank's upstream gradient is 1, so first = size * 2 * x.
    assert first == size * 2 * (1 + rank)
    assert outer.gradient(first, x) == 2 * size


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Max, hvd.Product])
def test_gradients_keep_the_dtype(run, size, op, dtype: str) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op)
        return tape.gradient(y, x)

    result = run(gradient, np.ones(2, tf.as_dtype(dtype).as_numpy_dtype))
    assert result.dtype == tf.as_dtype(dtype).as_numpy_dtype
    expected = {hvd.Sum: size, hvd.Product: size}.get(op, 1)
    np.testing.assert_array_equal(result, [expected] * 2)


def test_adasum_has_no_gradient(run) -> None:
    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, hvd.Adasum)
        return tape.gradient(y, x)

    with pytest.raises(hvd.InvalidArgumentError, match="Adasum"):
        run(gradient, np.ones(2, np.float32))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_gradients_of_slices(run, rank, size, op) -> None:
    """All ranks have index 0, and each rank has its own index 1 + rank."""

    def gradient(values: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(values)
            slices = tf.IndexedSlices(
                values,
                tf.constant([0, 1 + rank, 0]),
                tf.constant([size + 1, 2]),
            )
            y = tf.convert_to_tensor(hvd.allreduce(slices, op))
            weight = tf.range(size + 1.0)[:, None] + 1
            loss = (rank + 1) * tf.reduce_sum(weight * y * y)
        return tape.gradient(loss, values)

    result = run(gradient, np.ones([3, 2], np.float32))
    factor = 1 if op == hvd.Sum else 1 / size
    total = size * (size + 1) / 2  # sum of the ranks' loss factors
    shared = total * 2 * (2 * size * factor) * factor
    own = total * (2 + rank) * 2 * factor * factor
    np.testing.assert_allclose(
        result, [[shared] * 2, [own] * 2, [shared] * 2], rtol=1e-6
    )
