"""Paths of the system, and addresses that begin with a scheme (`gs://`)."""

from __future__ import annotations

import os


def is_remote(path: str) -> bool:
    """Whether a library reads and writes a path, not the system."""
    return "://" in path


def real_path(path: str) -> str:
    """Returns the path without links, and the same from any folder."""
    return path if is_remote(path) else os.path.realpath(path)
