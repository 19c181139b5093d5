"""The settings for a terminal: `hvdrun --help-env`."""

from __future__ import annotations

import textwrap

from hvd_keras.config import settings, text_of


def render(width: int) -> str:
    """Returns name, type, default and effect of each setting.

    Args:
        width: Characters of a line.
    """
    lines = []
    for row in settings():
        default = "unset" if row.default is None else text_of(row.default)
        kind = f"{row.kind}, {row.unit}" if row.unit else row.kind
        also = f"; also {row.alias}" if row.alias else ""
        choices = f" One of {', '.join(row.choices)}." if row.choices else ""
        for text, indent in (
            (f"{row.name}  ({kind}; default {default}{also})", ""),
            (row.effect + choices, "    "),
        ):
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=indent,
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
    return "\n".join(lines)
