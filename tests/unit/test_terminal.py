"""Texts of others do not steer the terminal they are shown on."""

from __future__ import annotations

import pytest

from hvd_keras._common.terminal import cell, one_line, printable, tell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),  # one character for ESC and [
        ("a\rb\x08\0", r"a\rb\x08\x00"),
        ("safe\u202etxt.exe", r"safe\u202etxt.exe"),
        ("\udcff\u2028", r"\udcff\u2028"),
        ("caf\u00e9 \u6f22 'x'", "caf\u00e9 \u6f22 'x'"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == one_line(text) == shown
    assert printable(f"{text}\n{text}") == f"{shown}\n{shown}"
    assert one_line(f"{text}\n{text}") == rf"{shown}\n{shown}"


def test_cells_are_short() -> None:
    assert cell("a" * 200) == "a" * 200
    assert cell("\x1b" * 10**6) == r"\x1b" * 49 + " ..."


def test_a_program_tells_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell("hvd-doctor", "\x1b[31mred")
    assert capsys.readouterr().err == "hvd-doctor: \\x1b[31mred\n"
    tell("hvd-doctor", FileNotFoundError(2, "No such file", "a"))
    assert capsys.readouterr().err == "hvd-doctor: 'a': No such file\n"
