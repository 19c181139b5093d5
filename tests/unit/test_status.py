"""hvdrun takes the ranks' news out of their output, and shows them."""

from __future__ import annotations

import json
import time

import pytest

from hvd_keras._job.bootstrap.status_marks import BEGIN, END
from hvd_keras.run.rank import Rank
from hvd_keras.run.status import Status


def news(at: float, steps: int, **others: float) -> bytes:
    values = {"pending": 0.0, "running": 0.0, "bytes": 0.0, "memory": 5e8}
    text = json.dumps({"time": at, "steps": steps, **values, **others})
    return BEGIN + text.encode() + END


@pytest.mark.parametrize("length", [1, 2, 3, 7, 50, 10_000])
def test_the_rest_of_the_output_stays_as_it_was(length: int) -> None:
    status = Status(1.0)
    two = b"\x1b[1mtwo\x1b_"
    text = b"one\n" + news(1.0, 5) + two + news(2.0, 6) + b"\x1b_h"
    kept = b"".join(
        status.take(0, text[i : i + length])
        for i in range(0, len(text), length)
    )
    assert kept + status.take(0, b"") == b"one\n" + two + b"\x1b_h"


@pytest.mark.parametrize("text", [b"not json", b"[1]", b'{"steps": "x"}'])
def test_what_is_not_news_is_dropped(text: bytes) -> None:
    status = Status(0.0)
    assert status.take(0, b"a" + BEGIN + text + END + b"b") == b"ab"
    assert "starting" in status.table_if_due([Rank(0)])


def test_a_mark_that_does_not_end_holds_nothing_back_for_long() -> None:
    status = Status(1.0)
    text = BEGIN + b"x" * 5000
    assert status.take(0, text) == text


def test_the_table_has_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status(0.0)
    ranks = [Rank(0), Rank(1)]
    status.take(0, news(10.0, 100))
    status.table_if_due(ranks)
    status.take(
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
