"""The signals that hvdrun and its agents pass on to the ranks."""

from __future__ import annotations

import os
import signal

from hvd_keras.run.system.loop import Loop

TO_GROUPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TO_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # they would kill a shell
SIGNALS = (*TO_GROUPS, *TO_RANKS)


class Wakeup:
    """Ends a step of the loop when a signal has come."""

    def __init__(self, loop: Loop) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._reader = reader
        loop.watch(reader, self._read)

    def _read(self) -> None:
        os.read(self._reader, 4096)
