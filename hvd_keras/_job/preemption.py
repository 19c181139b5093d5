"""Notices that this rank must soon stop, and tells the launcher when it does.

Schedulers say so by SIGTERM. Clouds tell by a file or a command that a machine
will be taken away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from hvd_keras import _rendezvous
from hvd_keras._common import log
from hvd_keras._job import state
from hvd_keras._rendezvous.protocol import ReportKind
from hvd_keras._rendezvous.topology import HVDRUN

# SIGTERM may come from the scheduler, and through hvdrun and its agents too.
_ONE_SIGNAL_SECONDS = 1.0
_COMMAND_SECONDS = 60.0


class Watch:
    """Looks for a notice from `begin` to `end`, on the main thread."""

    def __init__(
        self,
        is_training: Callable[[], bool],
        signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    ) -> None:
        """Does nothing until `begin`.

        Args:
            is_training: Whether somebody will still ask for a notice.
            signals: Those that are a notice.
        """
        self._is_training = is_training
        self._signals = signals
        self._has_come = threading.Event()
        self._is_over = threading.Event()
        self._came_at = 0.0
        self._previous: dict[signal.Signals, Any] = {}  # handlers

    @property
    def has_come(self) -> bool:
        """Whether this rank must stop."""
        return self._has_come.is_set()

    def begin(self) -> None:
        """Looks from now on."""
        self._is_over.clear()
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._on_signal)
            _handling.append(self)
        config = state.config()
        if config.preemption_file or config.preemption_command:
            threading.Thread(
                target=self._poll, name="hvd_keras preemption", daemon=True
            ).start()

    def end(self) -> None:
        """Looks no more; signals then do what they did before `begin`."""
        self._is_over.set()
        if self._previous:
            _handling.remove(self)
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._is_training():  # it has failed
            self._pass_on(number)
        elif not self._came_at:
            self._came_at = now
            self._has_come.set()
        elif now - self._came_at > _ONE_SIGNAL_SECONDS:  # another one
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        self.end()
        os.kill(os.getpid(), number)

    def _poll(self) -> None:
        while not self._is_over.is_set():
            if _is_told():
                self._has_come.set()
                return
            self._is_over.wait(state.config().preemption_poll_seconds)


def report(what: str) -> None:
    """Tells hvdrun, or else the log, why this rank ends now."""
    job = state.job()
    if job is None:
        return
    if job.topology.launcher == HVDRUN and job.topology.size > 1:
        _rendezvous.tell(
            job.topology,
            job.config,
            state.generation(),
            ReportKind.PREEMPTED,
            what,
        )
    elif job.topology.rank == 0:
        log.notice(f"{what}; run it again to go on")


def _is_told() -> bool:
    config = state.config()
    if config.preemption_file and os.path.exists(config.preemption_file):
        return True
    job = state.job()
    is_first = job is not None and job.topology.local_rank == 0
    if not config.preemption_command or not is_first:
        return False
    try:
        done = subprocess.run(
            config.preemption_command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


_handling: list[Watch] = []


def _forget_in_child() -> None:
    # Who has forked a worker ends it by SIGTERM.
    for watch in list(_handling):
        watch.end()


os.register_at_fork(after_in_child=_forget_in_child)
