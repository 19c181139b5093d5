"""How often ranks ask whether their members change."""

from __future__ import annotations

import itertools
import time

from hvd_keras._values.rhythm import Rhythm


def questions(rhythm: Rhythm, num_steps: int, seconds: float) -> list[int]:
    """Returns the steps after which the ranks ask."""
    found = []
    for step in range(num_steps):
        time.sleep(seconds)
        if rhythm.is_due():
            found.append(step)
            assert rhythm.ask(step == 0, False) == [step == 0, False]
    return found


def test_ranks_ask_four_times_a_second_from_the_first_step_on() -> None:
    """Even if the rhythm is as young as the first question."""
    found = questions(Rhythm("test/rhythm"), 60, 0.02)
    assert found[:2] == [0, 1]
    apart = [b - a for a, b in itertools.pairwise(found[1:])]
    assert len(apart) >= 3
    assert max(apart) <= 13  # 0.25 s
