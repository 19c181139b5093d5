"""Waits for descriptors, and calls back. Single-threaded."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Protocol

from hvd_keras.run.system import owned_folders

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
        owned_folders.renew_if_due()
        due_seconds = owned_folders.seconds_until_due()
        known = [t for t in (timeout_seconds, due_seconds) if t is not None]
        for key, _ in self._selector.select(min(known, default=None)):
            # An earlier call may have forgotten this one.
            now = self._selector.get_map().get(key.fileobj)
            if now is not None and now.data is key.data:
                key.data()
