from __future__ import annotations

import io

import pytest

from hvd_keras.run.output import (
    MAX_LINE_BYTES,
    RankStream,
    Screen,
    cut,
    visible,
)


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
