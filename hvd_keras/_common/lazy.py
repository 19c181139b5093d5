"""Imports the names of a package when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns what serves as `__getattr__` of a package.

    Args:
        package: Its name.
        homes: The module of each name, within the package.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        home = importlib.import_module(f"{package}.{homes[name]}")
        value = getattr(home, name)
        # Loading a module of that name must not replace it.
        setattr(sys.modules[package], name, value)
        return value

    return get
