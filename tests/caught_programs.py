"""Random programs with mistakes that ranks make alone, and catch.

All ranks draw the same program from a seed. So each knows what every step must
give: a value that NumPy computes, or an error on all ranks, soon.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

SOON = 3.0  # seconds
NUM_STEPS = 12
NUM_ROWS = 24
# What an error of ours may be, whatever the framework. A mistake of the caller
# may be one of Python's.
ERRORS = (hvd.HvdError, TypeError, ValueError, NotImplementedError)
MISTAKES: dict[str, list[str]] = {
    "allreduce": ["op", "none", "dtype", "shape", "other op", "factor"],
    "grouped_allreduce": ["op", "none", "dtype", "shape", "length", "empty"],
    "allgather": ["none", "dtype", "scalar", "width"],
    "broadcast": ["root", "other root", "dtype", "shape", "none"],
    "alltoall": ["none", "dtype", "rows"],
    "reducescatter": ["op", "none", "dtype", "shape", "scalar"],
    "object": ["type", "root"],
    "variables": ["root", "other", "none"],
    "fit": ["weights", "rate", "momentum", "l2"],
}


def seeds(count: int) -> list[Any]:
    """Returns the seeds of programs; one in ten runs without `--thorough`.

    TEST_SEED sets the first, TEST_PROGRAMS the count.

    Args:
        count: How many.
    """
    first = int(os.environ.get("TEST_SEED", "0"))
    count = int(os.environ.get("TEST_PROGRAMS", str(count)))
    return [
        pytest.param(seed, marks=pytest.mark.thorough if seed % 10 else ())
        for seed in range(first, first + count)
    ]


@dataclasses.dataclass(frozen=True)
class Step:
    """One call of a program.

    Args:
        kind: A key of `MISTAKES`.
        name: The name of a collective; None: it has none.
        mistake: What is wrong on rank `bad`; "": nothing.
        bad: The rank.
        number: Decides on the values.
        pause: Seconds for which that rank waits before.
    """

    kind: str
    name: str | None
    mistake: str
    bad: int
    number: int
    pause: float


def draw(seed: int, size: int) -> list[Step]:
    """Returns a program for so many ranks."""
    draws = random.Random(seed)
    steps = []
    for number in range(NUM_STEPS):
        kind = draws.choice(list(MISTAKES))
        mistake = draws.choice([*MISTAKES[kind], "", ""])
        steps.append(
            Step(
                kind,
                draws.choice([None, "a", "b"]),
                mistake,
                draws.randrange(size),
                number,
                draws.choice([0.0, 0.0, 0.1]),
            )
        )
    return [*steps, Step("fit", None, "", 0, NUM_STEPS, 0.0)]


class Runner:
    """Runs programs with the collectives of one framework.

    Args:
        ops: Its module: `hvd_keras`, `hvd_keras.jax` or `hvd_keras.torch`.
        tensor: Makes a tensor of a NumPy array.
    """

    def __init__(self, ops: Any, tensor: Callable[[Any], Any]) -> None:
        self._ops, self._tensor = ops, tensor

    def run(self, program: list[Step]) -> None:
        """Runs a program; raises AssertionError at the first wrong step."""
        for step in program:
            is_bad = hvd.rank() == step.bad
            if is_bad and step.pause:
                time.sleep(step.pause)
            call = getattr(self, f"_{step.kind}")
            begin = time.perf_counter()
            try:
                call(step, step.mistake if is_bad else "")
                error = None
            except ERRORS as caught:
                error = caught
            seconds = time.perf_counter() - begin
            assert (error is not None) == bool(step.mistake), (step, error)
            if step.kind != "fit":
                assert seconds < SOON, (step, seconds, error)
            if error is not None and not is_bad:
                is_ours = isinstance(error, hvd.HvdError)
                # An object travels as the error that it was.
                assert is_ours or step.kind == "object", (step, repr(error))

    def _values(self, step: Step, rank: int) -> Any:
        values = np.arange(NUM_ROWS, dtype=np.float32)
        return values + 100 * step.number + 7 * rank

    def _all(self, step: Step) -> Any:
        return np.stack([self._values(step, r) for r in range(hvd.size())])

    def _own(self, step: Step, mistake: str) -> Any:
        values = self._values(step, hvd.rank())
        if mistake == "none":
            return None
        if mistake == "dtype":
            values = values.astype(np.int32)
        if mistake == "shape":
            values = values[: NUM_ROWS // 2]
        if mistake == "scalar":
            values = values[0]
        if mistake == "width":
            values = values.reshape(-1, 2)
        if mistake == "rows":
            values = np.concatenate([values, values[:1]])
        return self._tensor(values)

    def _how(self, step: Step, mistake: str) -> dict[str, Any]:
        how: dict[str, Any] = {}
        if step.name is not None:
            how["name"] = f"{step.kind}/{step.name}"
        if mistake == "factor":
            how["prescale_factor"] = "x"
        return how

    def _op(self, mistake: str) -> Any:
        return {"op": 77, "other op": hvd.Max}.get(mistake, hvd.Sum)

    def _allreduce(self, step: Step, mistake: str) -> None:
        tensor, how = self._own(step, mistake), self._how(step, mistake)
        total = self._ops.allreduce(tensor, self._op(mistake), **how)
        np.testing.assert_array_equal(
            np.asarray(total), self._all(step).sum(axis=0)
        )

    def _grouped_allreduce(self, step: Step, mistake: str) -> None:
        tensors = [self._own(step, ""), self._own(step, mistake)]
        if mistake in ("length", "empty"):
            tensors = tensors[: mistake == "length"]
        totals = self._ops.grouped_allreduce(
            tensors, self._op(mistake), **self._how(step, mistake)
        )
        for total in totals:
            np.testing.assert_array_equal(
                np.asarray(total), self._all(step).sum(axis=0)
            )

    def _allgather(self, step: Step, mistake: str) -> None:
        gathered = self._ops.allgather(
            self._own(step, mistake), **self._how(step, mistake)
        )
        np.testing.assert_array_equal(
            np.asarray(gathered), self._all(step).reshape(-1)
        )

    def _broadcast(self, step: Step, mistake: str) -> None:
        root = step.number % hvd.size()
        if mistake == "root":
            root = 99
        if mistake == "other root":
            root = (root + 1) % hvd.size()
        sent = self._ops.broadcast(
            self._own(step, mistake), root, **self._how(step, mistake)
        )
        np.testing.assert_array_equal(
            np.asarray(sent), self._values(step, root)
        )

    def _alltoall(self, step: Step, mistake: str) -> None:
        received = self._ops.alltoall(
            self._own(step, mistake), **self._how(step, mistake)
        )
        rows = np.split(self._all(step), hvd.size(), axis=1)[hvd.rank()]
        np.testing.assert_array_equal(np.asarray(received), rows.reshape(-1))

    def _reducescatter(self, step: Step, mistake: str) -> None:
        part = self._ops.reducescatter(
            self._own(step, mistake),
            self._op(mistake),
            **self._how(step, mistake),
        )
        whole = np.array_split(self._all(step).sum(axis=0), hvd.size())
        np.testing.assert_array_equal(np.asarray(part), whole[hvd.rank()])

    def _object(self, step: Step, mistake: str) -> None:
        obj = {"rank": hvd.rank(), "number": step.number}
        if step.mistake == "root":
            hvd.broadcast_object(obj, 99 if mistake else 0)
        every = hvd.allgather_object(object() if mistake else obj)
        assert every == [
            {"rank": rank, "number": step.number} for rank in range(hvd.size())
        ]

    def _variables(self, step: Step, mistake: str) -> None:
        variable = keras.Variable(self._values(step, hvd.rank()))
        variables: Any = [variable, variable][: 1 + (mistake == "other")]
        hvd.broadcast_variables(
            None if mistake == "none" else variables,
            root_rank=99 if mistake == "root" else 0,
        )
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(variable), self._values(step, 0)
        )

    def _fit(self, step: Step, mistake: str) -> None:
        keras.utils.set_random_seed(step.number)
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(
                    1,
                    kernel_regularizer=keras.regularizers.L2(
                        0.2 if mistake == "l2" else 0.1
                    ),
                ),
            ]
        )
        if mistake == "weights":
            model.layers[-1].bias.assign([1.0])
        sgd = keras.optimizers.SGD(
            0.2 if mistake == "rate" else 0.1,
            momentum=0.5 if mistake == "momentum" else 0.9,
        )
        model.compile(hvd.DistributedOptimizer(sgd), "mse")
        x = np.random.default_rng(step.number).normal(size=(12, 2))
        data = hvd.shard((x, x.sum(axis=1)), batch_size=2)
        model.fit(data, verbose=0)
        hvd.assert_equal_on_all_ranks(model)
