"""What a trial leaves as it was, of what a script keeps in Python."""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import Any

import numpy as np
import pytest

from hvd_keras.distribution import _python_state

calls = []
number = 0


class Helper:
    """An object of the script's."""

    def __init__(self) -> None:
        self.total = 0.0
        self.rows = {"seen": [1]}

    def add(self) -> None:
        """Changes all that it holds."""
        self.total += 1.0
        self.rows["seen"].append(2)
        self.rows["more"] = []


class Model:
    """Stands for a model: what is kept is none of its variables."""

    variables = ()
    _flatten_layers = list

    stubborn: Any = None

    def __init__(self) -> None:
        self.steps = 0
        self.space = types.SimpleNamespace(count=0)
        self.helper = Helper()
        self.array = np.zeros(3)
        self.queue = collections.deque([1], maxlen=2)
        self.pairs = (self.array, [1])
        self.python = random.Random(0)
        self.numpy = np.random.default_rng(0)
        self.older = np.random.RandomState(0)
        count = 0

        def close() -> int:
            nonlocal count
            count += 1
            return count

        self.close = close
        self.part = functools.partial(dict.update, {"a": 1}, b=2)

    def train_step(self) -> None:
        """Changes all that it reaches."""
        global number
        number += 1
        calls.append(number)
        self.steps += 1
        self.space.count += 1
        self.helper.add()
        self.array += 1.0
        self.queue.append(2)
        self.pairs[1].append(2)
        self.close()
        self.part()

    def seen(self) -> list[Any]:
        """Returns all of it; draws numbers, which the next call draws again."""
        with _python_state.kept(self):
            return [
                *(number, list(calls), self.steps, self.helper.total),
                self.space.count,
                *(repr(self.helper.rows), self.array.tolist()),
                *(list(self.queue), list(self.pairs[1]), self.close()),
                *(self.part.args[0].copy(), self.python.random()),
                *(self.numpy.random(), self.older.rand()),
            ]


def test_a_trial_changes_nothing_that_a_step_reaches() -> None:
    model = Model()
    before = model.seen()
    assert model.seen() == before
    with _python_state.kept(model) as restore:
        for _ in range(2):
            model.train_step()
            assert model.steps == 1
            assert (model.seen()[0], len(calls)) == (1, 1)
            restore()
    assert model.seen() == before
    assert model.close() == 1

    model.train_step()
    after = model.seen()
    assert all(
        one != other for one, other in zip(before[:11], after[:11], strict=True)
    )


def test_a_trial_that_fails_changes_nothing() -> None:
    model = Model()

    def fail() -> None:
        with _python_state.kept(model):
            model.train_step()
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert model.steps == 0
    assert model.helper.rows == {"seen": [1]}


class Stubborn(list[int]):
    """A list that nobody can copy."""

    def copy(self) -> Any:
        raise OSError("no copies")


def test_what_nobody_can_copy_or_write_is_left() -> None:
    model = Model()
    model.stubborn = Stubborn()
    model.array.flags.writeable = False
    with _python_state.kept(model):
        model.steps += 1
    assert model.steps == 0
