"""Pages of docs/ that tests draw: how they run ranks, and write the page."""

from __future__ import annotations

import os
import pathlib

TESTS = pathlib.Path(__file__).resolve().parent


def environment(**extra: str) -> dict[str, str]:
    """Returns environment variables for ranks that import from tests/."""
    return {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}",
        **extra,
    }


def show(text: str, page: pathlib.Path, begin: str, *, write: bool) -> None:
    """Puts a drawn text behind a mark in a page, or else prints it.

    Args:
        text: What was drawn.
        page: The page.
        begin: The mark, a line of its own.
        write: Whether to change the page.
    """
    if not write:
        print(text)
        return
    before = page.read_text().split(begin)[0]
    page.write_text(f"{before}{begin}\n\n{text.rstrip()}\n")
