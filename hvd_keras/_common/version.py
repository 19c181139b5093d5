"""The version of this package."""

from __future__ import annotations

import importlib.metadata


def package_version() -> str:
    """The version that pip knows."""
    try:
        return importlib.metadata.version("hvd-keras")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
