"""Memory does not grow over ten thousand collectives of all kinds."""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import gc
import random

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

BATCH = 10  # collectives in flight at once, and threads
MAX_BYTES = 4 << 20
DTYPES = [
    tf.uint8,
    tf.int8,
    tf.uint16,
    tf.int16,
    tf.int32,
    tf.uint32,
    tf.int64,
    tf.uint64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
]


@dataclasses.dataclass
class Task:
    """One collective; each rank's tensor is full of `rank + value`."""

    kind: str
    name: str
    dtype: tf.DType
    num_elements: int
    value: int
    op: hvd.ReduceOp
    root_rank: int

    def run(self) -> None:
        size = hvd.size()
        values = [rank + self.value for rank in range(size)]
        x = np.full(
            [self.num_elements],
            values[hvd.rank()],
            self.dtype.as_numpy_dtype,
        )
        if self.kind == "allreduce":
            self._check(hvd.allreduce(x, self.op, name=self.name), values)
        elif self.kind == "grouped_allreduce":
            half = self.num_elements // 2
            members = [x[:half], x[half:], x[:1].astype(np.float32)]
            for y in hvd.grouped_allreduce(members, self.op, name=self.name):
                self._check(y, values)
        elif self.kind == "broadcast":
            y = hvd.broadcast(x, self.root_rank, name=self.name)
            np.testing.assert_array_equal(y, values[self.root_rank])
        else:
            rows = self.num_elements // size
            x = x[: rows // 2 if hvd.rank() == self.root_rank else rows]
            y = hvd.allgather(x, name=self.name).numpy()
            for rank, value in enumerate(values):
                num = rows // 2 if rank == self.root_rank else rows
                np.testing.assert_array_equal(y[:num], value)
                y = y[num:]
            assert y.size == 0

    def _check(self, y: tf.Tensor, values: list[int]) -> None:
        expected = {
            hvd.Sum: sum(values),
            hvd.Min: min(values),
            hvd.Max: max(values),
        }[self.op]
        np.testing.assert_array_equal(y, expected)


def random_task(generator: random.Random, name: str) -> Task:
    dtype = generator.choice(DTYPES)
    # Half are under 2 kB, and one in fifty is over 2 MB.
    num_bytes = int(MAX_BYTES * generator.random() ** 11)
    if generator.random() < 0.02:
        num_bytes = generator.choice([0, MAX_BYTES])
    return Task(
        kind=generator.choice(
            ["allreduce", "grouped_allreduce", "broadcast", "allgather"]
        ),
        name=name,
        dtype=dtype,
        num_elements=num_bytes // dtype.size,
        value=generator.randrange(20),
        op=generator.choice([hvd.Sum, hvd.Min, hvd.Max]),
        root_rank=generator.randrange(hvd.size()),
    )


def resident_bytes(*, trimmed: bool) -> int:
    """Returns the memory of this process; `trimmed`: without malloc's stock.

    The stock changes by some percent from moment to moment.
    """
    if trimmed:
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def growth(measured: list[list[int]]) -> float:
    """Returns the growth from the first values' median to the last ones'."""
    early, late = (np.median(values) for values in measured)
    return float(late / early - 1)


@pytest.mark.thorough
@pytest.mark.deadline(300)
def test_ten_thousand_collectives_in_any_order() -> None:
    # 10,000 collectives on 4 ranks; with fewer ranks a short run.
    num_batches = 1000 if hvd.size() == 4 else 80
    shared = random.Random(2024)  # draws the tasks; equal on all ranks
    own = random.Random(hvd.rank())  # draws this rank's order
    # Memory is measured often, after a tenth of the run and at its end. The
    # garbage collector skips imported objects; else it takes most of the test.
    gc.freeze()
    resident: list[list[int]] = [[], []]
    trimmed: list[list[int]] = [[], []]
    with concurrent.futures.ThreadPoolExecutor(BATCH) as pool:
        for batch in range(num_batches):
            names = shared.sample(range(5000), BATCH)
            tasks = [random_task(shared, f"soak {name}") for name in names]
            if batch % 32 == 0:  # as much as can be in flight
                for task in tasks:
                    task.num_elements = MAX_BYTES // task.dtype.size
            own.shuffle(tasks)
            for done in [pool.submit(task.run) for task in tasks]:
                done.result()
            is_early = num_batches <= 10 * batch < 1.4 * num_batches
            if is_early or 10 * batch >= 9.6 * num_batches:
                gc.collect()
                resident[not is_early].append(resident_bytes(trimmed=False))
                trimmed[not is_early].append(resident_bytes(trimmed=True))
    print(
        f"memory grew by {growth(trimmed):.2%}, with malloc's stock by "
        f"{growth(resident):.2%}"
    )
    gc.unfreeze()
    # In a short run TensorFlow's own caches still fill.
    assert growth(trimmed) < (0.05 if num_batches == 1000 else 0.5)
