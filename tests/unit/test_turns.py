"""Ranks of an unchanged script that make files in turn, one process of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_keras.distribution import _turns


class Interrupted(BaseException):
    pass


@pytest.fixture
def turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int]]:
    """Makes this process rank 1 of 2, and gives the lock of rank 0."""
    monkeypatch.setattr(_turns, "_of_host", lambda: str(tmp_path / "turn"))
    monkeypatch.setattr(_turns, "_num_ranks", 2)
    monkeypatch.setattr(_turns, "_turn", 0)
    monkeypatch.setattr(_turns, "_rank", 0)
    other = _turns._taken(0)
    monkeypatch.setattr(_turns, "_rank", 1)
    monkeypatch.setattr(_turns, "_own", _turns._taken(0))
    monkeypatch.setattr(_turns, "_may_go", False)
    yield [other]
    _turns.end()


def interrupt(seconds: float) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def test_a_rank_that_was_interrupted_waits_again(turns: list[int]) -> None:
    for _ in range(2):
        interrupt(0.1)
        with pytest.raises(Interrupted):
            _turns.wait()
    os.close(turns.pop())
    interrupt(20.0)
    _turns.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_ranks_meet_after_an_interrupt(turns: list[int]) -> None:
    interrupt(0.1)
    with pytest.raises(Interrupted), _turns.ranks_meet():
        pass
    os.close(turns.pop())
    interrupt(20.0)  # it must not wait for a lock of its own
    with _turns.ranks_meet():
        signal.setitimer(signal.ITIMER_REAL, 0)
