"""hvdrun shows what the ranks tell of themselves."""

from __future__ import annotations

import json
import time

import pytest

from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.screen.status import Status


def news(at: float, steps: int, **others: float) -> str:
    values = {"pending": 0.0, "running": 0.0, "bytes": 0.0, "memory": 5e8}
    return json.dumps({"time": at, "steps": steps, **values, **others})


@pytest.mark.parametrize("text", ["not json", "[1]", '{"steps": "x"}'])
def test_what_is_not_news_is_dropped(text: str) -> None:
    status = Status(0.0)
    status.note(0, text)
    assert "starting" in status.table_if_due([Rank(0)])


def test_the_table_has_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status(0.0)
    ranks = [Rank(0), Rank(1)]
    status.note(0, news(10.0, 100))
    status.table_if_due(ranks)
    status.note(
        0, news(12.0, 150, pending=1.0, running=0.5, bytes=8e6, memory=2e9)
    )
    _, header, first, second = status.table_if_due(ranks).splitlines()
    assert header.split()[2:] == [
        "step", "steps/s", "waits", "runs", "MB/s", "memory"
    ]  # fmt: skip
    assert first.split() == [
        "0", "-", "150", "25.0", "25%", "25%", "4", "2.00", "GB"
    ]  # fmt: skip
    assert second.split()[-1] == "starting"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert "silent for 60 s" in status.table_if_due(ranks)


def test_a_table_comes_when_it_is_due() -> None:
    status = Status(1000.0)
    assert status.table_if_due([Rank(0)]) == ""
    assert status.next_deadline() > time.monotonic() + 900
