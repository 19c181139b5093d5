"""A rank of test_xla.py: it runs a program with 14 collectives 200 times."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_keras as hvd

NUM_RUNS = 200
NUM_CHAINS = 12
SIDE = 192


def check_first_trace() -> None:
    """Traces the first op of the process for XLA."""
    contexts = []

    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        result = hvd.allreduce(x, hvd.Sum)
        graph = tf.compat.v1.get_default_graph()
        types = [operation.type for operation in graph.get_operations()]
        contexts.append("HorovodAllreduce" not in types)
        return result

    compiled = tf.function(inner, jit_compile=True, autograph=False)
    for call in (compiled, inner, compiled):
        assert float(call(tf.constant(1.0))) == hvd.size()
    assert contexts == [True, False], contexts


def main() -> None:
    hvd.init()
    check_first_trace()
    rank, size = hvd.rank(), hvd.size()
    swap = tf.constant(np.eye(SIDE, dtype=np.float32)[::-1])

    def program(x: tf.Tensor) -> tuple[list[tf.Tensor], Any, Any]:
        # Each chain of products ends in a collective. Chains are independent,
        # large enough for XLA to run them at once, and differ in length by
        # rank.
        sums = []
        for i in range(NUM_CHAINS):
            y = x * float(i + 1)
            for _ in range(2 * ((i * (rank + 1)) % 3)):
                y = swap @ y
            sums.append(hvd.allreduce(y, hvd.Sum, name=f"chain.{i}"))
        rows = hvd.allgather(x[:2])
        root = hvd.broadcast(x * float(rank + 1), size - 1)
        return [y[0, 0] for y in sums], rows[:, 0], root[0, 0]

    compiled = tf.function(program, jit_compile=True, autograph=False)
    x = tf.eye(SIDE)
    delays = np.random.default_rng(rank).uniform(0.0, 0.002, NUM_RUNS)
    for delay in delays:
        time.sleep(delay)
        sums, rows, root = compiled(x)
        assert [float(y) for y in sums] == [
            size * (i + 1.0) for i in range(NUM_CHAINS)
        ]
        np.testing.assert_array_equal(rows, [1.0, 0.0] * size)
        assert float(root) == size
    print(f"{NUM_RUNS} runs were right", flush=True)
    if rank == 1:
        os._exit(7)
    started = time.monotonic()
    caught = None
    try:
        compiled(x)
    except tf.errors.UnavailableError as error:
        caught = error
    assert isinstance(caught, hvd.PeerLostError)
    assert time.monotonic() - started < 1.0
    print("then PeerLostError", flush=True)


if __name__ == "__main__":
    main()
