"""The files of a timeline."""

from __future__ import annotations

import re

VERSION = 1  # of their format
NAME = re.compile(r"timeline_rank_(\d+)\.hvdtrace")


def file_name(rank: int) -> str:
    """The name of a rank's file in the folder."""
    return f"timeline_rank_{rank}.hvdtrace"
