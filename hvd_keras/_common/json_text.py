"""Reads JSON that may be broken, or that a stranger has made."""

from __future__ import annotations

import json
from typing import Any

_MOST = (1 << 63) - 1


def parsed(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is malformed, or deeper than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole(value: Any, least: int = -_MOST, most: int = _MOST) -> int:
    """Returns `value` if it is a whole number within bounds.

    Raises:
        ValueError: It is something else.
    """
    # `bool` is an `int`; a large float such as 1e309 is infinite.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"no whole number in [{least}, {most}]")
    return value


def words(value: Any) -> str:
    """Returns `value` if it is a text; lone surrogates are replaced.

    Raises:
        ValueError: It is something else.
    """
    if type(value) is not str:
        raise ValueError("no text")
    return value.encode("utf-8", "replace").decode("utf-8")
