"""A collective runs exactly once each time the program reaches it.

TensorFlow's optimizers keep each one and duplicate none. Ranks may build their
graphs, or run independent collectives, in different orders without a deadlock.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import random

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _native

pytestmark = pytest.mark.thorough(4)


def num_requests() -> int:
    return _native.core().stats()["num_requests"]


def test_constant_input_is_not_folded() -> None:
    @tf.function
    def step() -> tf.Tensor:
        return hvd.allreduce(tf.constant([1.0, 2.0]))

    step()
    before = num_requests()
    for _ in range(5):
        step()
    assert num_requests() - before == 5


def test_identical_ops_are_not_merged() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x) + hvd.allreduce(x)

    step(tf.constant(1.0))
    before = num_requests()
    for _ in range(5):
        step(tf.constant(1.0))
    assert num_requests() - before == 10


def test_unused_op_is_not_pruned() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        hvd.allreduce(x)
        hvd.allgather(x[None])
        hvd.broadcast(x, 0)
        hvd.grouped_allreduce([x, x])
        return x

    step(tf.constant(1.0))
    before = num_requests()
    for _ in range(5):
        step(tf.constant(1.0))
    assert num_requests() - before == 20


def test_unused_op_in_nested_functions_and_branches_is_not_pruned() -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        hvd.allreduce(x)
        return x

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        inner(x)
        inner(x + 1)
        if x > 0:
            hvd.allreduce(x)
        else:
            hvd.allgather(x[None])
        return x

    step(tf.constant(1.0))
    before = num_requests()
    for i in range(4):
        step(tf.constant(float(i % 2)))
    assert num_requests() - before == 12


def test_collectives_are_independent_of_each_other() -> None:
    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x + i) for i in range(3)]

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    collectives = [
        op for op in graph.get_operations() if op.type == "HorovodAllreduce"
    ]
    assert len(collectives) == 3
    for op in collectives:
        assert op.op_def.is_stateful
        assert not op.control_inputs


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast"])
def test_ranks_may_trace_in_different_orders(rank, size, kind: str) -> None:
    order = list(range(60))
    random.Random(rank).shuffle(order)

    def one(x: tf.Tensor, i: int) -> tf.Tensor:
        name = f"{kind} in any order {i}"
        if kind == "allreduce":
            return hvd.allreduce(x + float(i), hvd.Sum, name=name)
        if kind == "allgather":
            return hvd.allgather(tf.fill([1], x + float(i)), name=name)
        return hvd.broadcast(x + float(i), i % size, name=name)

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        results = {i: one(x, i) for i in order}
        return [results[i] for i in range(60)]

    for _ in range(3):
        for i, result in enumerate(step(tf.constant(float(rank)))):
            expected = {
                "allreduce": size * i + size * (size - 1) / 2,
                "allgather": np.arange(size) + i,
                "broadcast": i % size + i,
            }[kind]
            np.testing.assert_array_equal(result, expected)


def test_gradients_may_be_traced_in_different_orders(rank, size) -> None:
    order = list(range(20))
    random.Random(rank).shuffle(order)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.constant(0.0)
            for i in order:
                y = hvd.allreduce(x, hvd.Sum, name=f"some gradient {i}")
                loss += i * tf.reduce_sum(y)
        return tape.gradient(loss, x)

    total = sum(order) * size
    np.testing.assert_array_equal(step(tf.ones([3])), [total] * 3)


def test_reads_see_the_writes_before_them(rank, size) -> None:
    variable = tf.Variable(float(rank))

    @tf.function
    def step() -> tf.Tensor:
        variable.assign(hvd.allreduce(variable, hvd.Sum))
        variable.assign_add(1.0)
        return hvd.allreduce(variable, hvd.Sum)

    total = size * (size - 1) / 2
    assert step() == size * (total + 1)
    assert step() == size * (size * (total + 1) + 1)


@pytest.mark.parametrize("parallel_iterations", [1, 10, 32])
def test_iterations_of_a_loop_do_not_mix(
    run, rank, size, parallel_iterations: int
) -> None:
    """This holds if TensorFlow runs several iterations at once, too."""

    def loop(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, sums: tf.TensorArray) -> tuple:
            y = hvd.allreduce(
                tf.fill([7], x + tf.cast(i, tf.float32)),
                hvd.Sum,
                name="in the body",
            )
            return i + 1, sums.write(i, y)

        sums = tf.TensorArray(tf.float32, 40, element_shape=[7])
        _, sums = tf.while_loop(
            lambda i, _: i < 40,
            body,
            [tf.constant(0), sums],
            parallel_iterations=parallel_iterations,
        )
        return sums.stack()

    for _ in range(3):
        result = run(loop, np.float32(rank))
        expected = np.arange(40) * size + size * (size - 1) / 2
        np.testing.assert_array_equal(result, np.stack([expected] * 7, axis=1))


def test_nested_loops_do_not_mix(run, rank, size) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        def outer(i: tf.Tensor, total: tf.Tensor) -> tuple:
            def inner(j: tf.Tensor, subtotal: tf.Tensor) -> tuple:
                value = x * tf.cast(10 * i + j, tf.float32)
                return j + 1, subtotal + hvd.allreduce(value, hvd.Sum)

            _, subtotal = tf.while_loop(
                lambda j, _: j < 5, inner, [tf.constant(0), tf.constant(0.0)]
            )
            return i + 1, total + subtotal

        return tf.while_loop(
            lambda i, _: i < 6, outer, [tf.constant(0), tf.constant(0.0)]
        )[1]

    total = sum(10 * i + j for i in range(6) for j in range(5))
    assert run(loop, np.float32(rank + 1)) == total * size * (size + 1) / 2


def test_body_of_a_range_loop_runs_once_an_iteration(rank, size) -> None:
    @tf.function
    def inner(i: tf.Tensor) -> None:
        hvd.allreduce(tf.cast(i, tf.float32))  # the result is unused

    @tf.function
    def step(n: tf.Tensor) -> None:
        for i in tf.range(n):
            inner(i)
            hvd.allreduce(tf.ones([3]), name="constant in the body")

    step(tf.constant(1))
    before = num_requests()
    step(tf.constant(50))
    assert num_requests() - before == 100


def test_gradient_of_a_loop_is_right(rank, size) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = hvd.allreduce(y * 2.0, hvd.Average, name="in a loop")
        return tape.gradient(y, x)

    assert step(tf.constant(float(rank))) == 8


def test_threads_may_run_functions_in_different_orders(rank, size) -> None:
    @tf.function(reduce_retracing=True)
    def step(x: tf.Tensor, name: str) -> tf.Tensor:
        return hvd.allreduce(x, hvd.Sum, name=name)

    names = [f"thread {i}" for i in range(8)]
    functions = [
        step.get_concrete_function(tf.TensorSpec([]), name) for name in names
    ]
    order = list(range(8))
    random.Random(rank).shuffle(order)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            calls = {
                i: pool.submit(functions[i], tf.constant(float(i)))
                for i in order
            }
            for i, call in calls.items():
                assert call.result() == size * i


def test_session_runs_only_what_it_is_asked_for(rank, size) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [])
        wanted = hvd.allreduce(x, hvd.Sum)
        hvd.allreduce(x, hvd.Sum)
        before = num_requests()
        for value in range(5):
            assert session.run(wanted, {x: value}) == size * value
        assert num_requests() - before == 5


def test_autograph_does_not_rewrite_the_ops() -> None:
    """Rewriting would take seconds in the first trace."""
    callers = []

    class Watching(hvd.Compressor):
        @staticmethod
        def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, None]:
            callers.append(inspect.stack()[1].filename)
            return tensor, None

        @staticmethod
        def decompress(tensor: tf.Tensor, ctx: None) -> tf.Tensor:
            return tensor

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, compression=Watching)

    step(tf.constant(1.0))
    (caller,) = callers
    assert caller.endswith("hvd_keras/ops/allreduce.py")


def test_autograph_does_not_rewrite_tapes_nor_the_names_of_horovod() -> None:
    from hvd_keras import compat

    functions = [
        getattr(compat, name)
        for name in dir(compat)
        if name.endswith("GradientTape") or name in dir(hvd.ops)
    ]
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    functions += [hvd.DistributedGradientTape, type(tape).gradient]
    functions += [hvd.PartialDistributedGradientTape, compat.broadcast_object]
    for function in functions:
        if inspect.isfunction(function):
            assert hasattr(function, "autograph_info__"), function
