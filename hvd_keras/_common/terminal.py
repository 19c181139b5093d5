"""Shows texts that others chose, such as names, on the user's terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

_MOST_SHOWN = 200  # characters of a cell of a table


def printable(text: str) -> str:
    """Returns `text` with escapes for what would steer a terminal.

    These are the characters that Python does not call printable, such as ESC
    and those that turn the direction of writing. Lines stay lines.
    """
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    """As `printable`, with escapes for line breaks too."""
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable()
        else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def cell(text: str) -> str:
    """As `one_line`, and cut, for a cell of a table."""
    shown = one_line(text[: _MOST_SHOWN + 1])
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[: _MOST_SHOWN - 4]} ..."
    return shown


def in_columns(
    rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Returns lines with the cells of rows below each other.

    Args:
        rows: The cells of each line.
        right: The columns whose cells stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def tell(program: str, what: object) -> None:
    """Prints what a program says, on the standard error.

    Args:
        program: Its name.
        what: A text or an error.
    """
    if isinstance(what, OSError) and what.filename is not None:
        what = f"{what.filename!r}: {what.strerror}"
    text = printable(str(what))
    print(f"{program}: {text}", file=sys.stderr, flush=True)
