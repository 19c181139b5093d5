"""Waits for descriptors, and calls back. Single-threaded."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Protocol

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


Descriptor = int | _HasDescriptor


class Loop:
    """The descriptors of this process, and what to do when one is ready."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(
        self, file: Descriptor, call: Callable[[], None], events: int = READ
    ) -> None:
        """Calls `call` whenever one of `events` can happen at `file`."""
        self._selector.register(file, events, call)

    def change(self, file: Descriptor, events: int) -> None:
        """Waits for other events at `file`."""
        key = self._selector.get_key(file)
        if key.events != events:
            self._selector.modify(file, events, key.data)

    def forget(self, file: Descriptor) -> None:
        """Stops watching `file`, which must still be open."""
        self._selector.unregister(file)

    def step(self, timeout_seconds: float | None) -> None:
        """Waits until something is ready, then makes the calls."""
        for key, _ in self._selector.select(timeout_seconds):
            # An earlier call may have forgotten this one.
            known = self._selector.get_map().get(key.fileobj)
            if known is not None and known.data is key.data:
                key.data()
