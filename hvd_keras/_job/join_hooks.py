"""Functions that run when this process has joined a job.

Layers above register them here, because `init()` does not know those layers.
"""

from __future__ import annotations

from collections.abc import Callable

_hooks: list[Callable[[], None]] = []


def add(hook: Callable[[], None]) -> None:
    """Calls `hook` at the end of every `init()` that joins a job."""
    _hooks.append(hook)


def run() -> None:
    """Calls the hooks in the order in which they were added."""
    for hook in _hooks:
        hook()
