"""The version of this package."""

from __future__ import annotations

import importlib.metadata


def package_version() -> str:
    """Returns the installed version; "unknown" without an installation."""
    try:
        return importlib.metadata.version("hvd-keras")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
