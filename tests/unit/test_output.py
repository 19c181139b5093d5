from __future__ import annotations

import io
import time

import pytest

from hvd_keras.run.screen.output import (
    MAX_LINE_BYTES,
    RankStream,
    Screen,
    cut,
    visible,
)
from hvd_keras.run.screen.repeats import Repeats


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def _screen(stream: io.BytesIO | None = None) -> tuple[Screen, io.BytesIO]:
    stream = stream or io.BytesIO()
    return Screen(stream, tag=True, timestamp=False), stream


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"plain", b"plain"),
        (b"dos\r", b"dos"),
        (b"old\rnew", b"new"),
        (b"old\rnew\r", b"new"),
        (b"\b\b\b\r 2/3", b" 2/3"),
        (b"abc\b\bd", b"ad"),
        (b"\b\bx", b"x"),
        (b"", b""),
        (b"\r", b""),
    ],
)
def test_visible_is_what_a_terminal_shows(line: bytes, expected: bytes) -> None:
    assert visible(line) == expected


def test_backspaces_take_linear_time() -> None:
    begin = time.process_time()
    assert visible(b"ab\b\b" * (1 << 19)) == b""
    assert visible(b"a" * (1 << 20) + b"\b" * (1 << 20)) == b""
    assert time.process_time() - begin < 5  # squared: hours


def test_cut_counts_columns_and_not_escapes() -> None:
    bar = b"\x1b[32m" + "━━━━".encode() + b"\x1b[0m end"
    assert cut(bar, 2) == b"\x1b[32m" + "━━".encode() + b"\x1b[0m"
    assert cut(bar, 6) == b"\x1b[32m" + "━━━━".encode() + b"\x1b[0m e"
    assert cut(bar, 100) == bar


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_lines_do_not_depend_on_how_they_arrive(step: int) -> None:
    screen, shown = _screen()
    stream = RankStream(4, screen, None)
    data = b"one\ntwo\b\bwo\r2\n\n\x80three\rlast"
    for start in range(0, len(data), step):
        stream.feed(data[start : start + step])
    stream.close()
    assert shown.getvalue() == b"[4] one\n[4] 2\n[4] \n[4] last\n"
    assert stream.last_lines == [b"one", b"2", b"last"]


def test_memory_is_bounded_whatever_comes() -> None:
    screen, shown = _screen()
    stream = RankStream(0, screen, None)
    for _ in range(100):
        stream.feed(b"\b" * 10 + b"\rprogress" * 1000)
        assert len(stream._partial) < 100
    assert shown.getvalue() == b""
    stream.feed(b"x" * (MAX_LINE_BYTES + 1))
    assert stream._partial == b""
    assert len(shown.getvalue()) > MAX_LINE_BYTES


def test_unfinished_line_stays_below_the_lines_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    screen, shown = _screen(_Terminal())
    bar = RankStream(0, screen, None, shows_growing=True)
    other = RankStream(1, screen, None)
    bar.feed(b"\r1/2")
    other.feed(b"hello\n")
    bar.feed(b"\b\b\b\r2/2 and much more that does not fit")
    bar.feed(b"\r2/2\n")
    clear = b"\r\x1b[K"
    assert shown.getvalue() == (
        clear + b"[0] 1/2"
        + clear + b"[1] hello\n[0] 1/2"
        + clear + b"[0] 2/2 and much mo"
        + clear + b"[0] 2/2\n"
    )  # fmt: skip


_KERAS = "/a/keras/src/trainers/x.py:7: UserWarning: "
_START = """\
WARNING: All log messages before absl::InitializeLog() is called are written \
to STDERR
I0000 00:00:{time} {pid} port.cc:153] oneDNN custom operations are on. You may \
see slightly different numerical results.
2026-11-22 19:00:00.{pid}: I tensorflow/core/x/cpu_feature_guard.cc:210] This \
TensorFlow binary is optimized to use available CPU instructions in \
performance-critical operations.
To enable the following instructions: AVX2 FMA, in other operations, rebuild \
TensorFlow with the appropriate compiler flags.
{keras}`shuffle=True` was passed, but will be ignored since the data `x` was \
provided as a tf.data.Dataset. And so on.
  self.fit(
"""


def test_known_lines_of_libraries_are_shown_once() -> None:
    screen, shown = _screen()
    repeats = Repeats()
    unknown = "I0000 00:00:1.5 17 port.cc:153] something else\n  self.fit(\n"
    expected = []
    for rank in range(3):
        stream = RankStream(rank, screen, None, repeats=repeats)
        start = _START.format(time=rank, pid=100 + rank, keras=_KERAS)
        stream.feed((start + unknown).encode())
        lines = (unknown if rank else start + unknown).splitlines()
        expected += [f"[{rank}] {line}" for line in lines]
    assert shown.getvalue().decode().splitlines() == expected


def test_other_source_below_a_known_warning_is_shown() -> None:
    screen, shown = _screen()
    repeats = Repeats()
    for rank, source in enumerate((b"  fit(\n", b"  evaluate(\n")):
        stream = RankStream(rank, screen, None, repeats=repeats)
        stream.feed(
            _START.splitlines()[4].format(keras=_KERAS).encode() + b"\n"
        )
        stream.feed(source)
    assert shown.getvalue().endswith(b"[0]   fit(\n[1]   evaluate(\n")
