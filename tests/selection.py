"""Chooses the parameters that the quick test command runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_except(names: Iterable[Any], *quick: Any) -> list[Any]:
    """Returns parameters; all but those in `quick` need `--thorough`."""
    names = list(names)
    missing = [name for name in quick if name not in names]
    assert not missing, f"not among the parameters: {missing}"
    return [
        name
        if name in quick
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in names
    ]
