"""Random programs of 500 collectives on 3 process sets equal NumPy.

All ranks draw the same program, and each runs it in its own order: names pair
the calls, and negotiation orders them. Values are small whole numbers drawn by
rank, so every rank knows the values of the others.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)

NUM_COLLECTIVES = 500
KINDS = [
    "allreduce",
    "grouped_allreduce",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
]
DTYPES = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "uint8",
    "int32",
    "int64",
]
REDUCTIONS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective of a program."""

    number: int
    kind: str
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    op: hvd.ReduceOp
    shapes: tuple[tuple[int, ...], ...]
    root: int

    @property
    def name(self) -> str:
        return f"{self.number}/{self.kind}"

    def splits(self, rank: int) -> list[int]:
        """Returns the splits of `rank` in an alltoall."""
        return [(rank + r + self.number) % 3 for r in self.ranks]

    def inputs(self, rank: int) -> list[np.ndarray]:
        draw = np.random.default_rng([self.number, rank])
        arrays = []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            if self.kind == "alltoall":
                shape = (sum(self.splits(rank)), *shape[1:])
            elif "allgather" in self.kind:
                shape = ((shape[0] + rank) % 5, *shape[1:])
            numbers = draw.integers(0, 3, shape)
            arrays.append(numbers.astype(tf.as_dtype(dtype).as_numpy_dtype))
        return arrays


def draw_program(seed: int, sets: list[list[int]]) -> list[Step]:
    draw = random.Random(seed)
    steps = []
    for number in range(NUM_COLLECTIVES):
        kind = draw.choice(KINDS)
        ranks = tuple(draw.choice(sets))
        num_members = draw.randint(1, 4) if "grouped" in kind else 1
        scalars = kind in ("allreduce", "grouped_allreduce", "broadcast")
        shapes = []
        for _ in range(num_members):
            num_dims = draw.randint(0 if scalars else 1, 3)
            shape = [draw.randint(0, 5) for _ in range(num_dims)]
            if shape and draw.random() < 0.1:
                shape[0] = 1000
            shapes.append(tuple(shape))
        steps.append(
            Step(
                number,
                kind,
                ranks,
                tuple(draw.choice(DTYPES) for _ in range(num_members)),
                draw.choice(REDUCTIONS),
                tuple(shapes),
                draw.choice(ranks),
            )
        )
    return steps


def run_step(step: Step, process_set: hvd.ProcessSet, tensors: list) -> list:
    options: dict[str, Any] = {"name": step.name, "process_set": process_set}
    function: Callable[..., Any] = getattr(hvd, step.kind)
    if step.kind.startswith("grouped"):
        if "reduce" in step.kind:
            options["op"] = step.op
        return function(tensors, **options)
    (tensor,) = tensors
    if step.kind in ("allreduce", "reducescatter"):
        return [function(tensor, step.op, **options)]
    if step.kind == "broadcast":
        return [function(tensor, step.root, **options)]
    if step.kind == "alltoall":
        return list(function(tensor, step.splits(hvd.rank()), **options))
    return [function(tensor, **options)]


def reduce_arrays(arrays: list[np.ndarray], op: hvd.ReduceOp) -> np.ndarray:
    wide = np.stack([array.astype(np.float64) for array in arrays])
    result = {
        hvd.Sum: lambda: wide.sum(0),
        hvd.Average: lambda: wide.sum(0) / len(arrays),
        hvd.Min: lambda: wide.min(0),
        hvd.Max: lambda: wide.max(0),
        hvd.Product: lambda: wide.prod(0),
    }[op]()
    return result.astype(arrays[0].dtype)


def expected(step: Step, rank: int) -> list[np.ndarray]:
    inputs = [step.inputs(r) for r in step.ranks]
    own = step.ranks.index(rank)
    size = len(step.ranks)
    if step.kind == "broadcast":
        return inputs[step.ranks.index(step.root)]
    if step.kind == "alltoall":
        parts = []
        for r, (rows,) in zip(step.ranks, inputs, strict=True):
            begin = sum(step.splits(r)[:own])
            parts.append(rows[begin : begin + step.splits(r)[own]])
        counts = [len(part) for part in parts]
        return [np.concatenate(parts), np.array(counts, np.int32)]
    members = list(zip(*inputs, strict=True))
    if "allgather" in step.kind:
        return [np.concatenate(member) for member in members]
    reduced = [reduce_arrays(list(member), step.op) for member in members]
    if "allreduce" in step.kind:
        return reduced
    shares = []
    for array in reduced:
        small, num_larger = divmod(len(array), size)
        begin = own * small + min(own, num_larger)
        end = begin + small + (own < num_larger)
        shares.append(array[begin:end])
    return shares


@pytest.mark.thorough(4)
@pytest.mark.parametrize("seed", thorough_except([1, 2], 1))
def test_random_program_equals_numpy(sets, rank, size, seed: int) -> None:
    number = sets["parity"].process_set_id
    if size == 1:
        sets_of_all = [[0]]
        by_ranks = {(0,): hvd.global_process_set}
    else:
        first = number if rank % 2 == 0 else number - 1
        three = [hvd.process_set_by_id(i) for i in (0, first, first + 1)]
        sets_of_all = [one.ranks for one in three]
        by_ranks = {tuple(one.ranks): one for one in three}
    program = draw_program(seed, sets_of_all)
    mine = [step for step in program if rank in step.ranks]
    order = list(range(len(mine)))
    random.Random(f"{seed} {rank}").shuffle(order)

    @tf.function(autograph=False)
    def run_program(inputs: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        outputs = {}
        for i in order:
            step = mine[i]
            outputs[i] = run_step(step, by_ranks[step.ranks], inputs[i])
        return [outputs[i] for i in range(len(mine))]

    inputs = [
        [tf.constant(array) for array in step.inputs(rank)] for step in mine
    ]
    for _ in range(3):
        outputs = run_program(inputs)
        for step, results in zip(mine, outputs, strict=True):
            wanted = expected(step, rank)
            for result, want in zip(results, wanted, strict=True):
                assert result.dtype.as_numpy_dtype == want.dtype
                np.testing.assert_array_equal(result.numpy(), want, str(step))
