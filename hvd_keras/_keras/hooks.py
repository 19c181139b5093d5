"""What others want to be called at, one object for each kind of event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Function = TypeVar("Function")


class Hooks(Generic[Function]):
    """Functions in the order in which they were added, each once."""

    def __init__(self) -> None:
        self._functions: list[Function] = []

    def add(self, function: Function) -> None:
        """Adds a function, unless it is there already."""
        if function not in self._functions:
            self._functions.append(function)

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions)
