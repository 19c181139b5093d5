"""Asks a user's program, now and then, which hosts an elastic job may use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable

from hvd_keras.run.hosts import placement
from hvd_keras.run.ranks.process import die_with_parent
from hvd_keras.run.system.loop import Loop
from hvd_keras.run.usage import UsageError

_PERIOD_SECONDS = 1.0
_LIMIT_SECONDS = 30.0
_MAX_BYTES = 1 << 20
_MOST_SHOWN = 100  # characters of a bad line
# From the end of its output to its own.
_END_SECONDS = 0.5

HostSlots = dict[str, int]  # name and slots of each host


def ask(path: str, slots_per_host: int) -> HostSlots:
    """Returns what the program says now.

    Raises:
        UsageError: It fails, or prints something else than hosts.
    """
    loop, found, wrong = Loop(), list[HostSlots](), list[str]()
    asking = Discovery(loop, path, slots_per_host, found.append, wrong.append)
    try:
        while not found and not wrong:
            asking.step()
            loop.step(max(0.0, asking.next_deadline() - time.monotonic()))
    finally:
        asking.close()
    if wrong:
        raise UsageError(wrong[0])
    return found[0]


class Discovery:
    """Runs the program each second, without waiting for it."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        slots_per_host: int,
        on_hosts: Callable[[HostSlots], None],
        say: Callable[[str], None],
    ) -> None:
        """Begins with the next `step`.

        Args:
            loop: Calls when the program has said something.
            path: The program. It prints lines such as `host:4`.
            slots_per_host: Slots of hosts that it prints without a number.
            on_hosts: Called with what it says.
            say: Called with what is wrong with it.
        """
        self._loop = loop
        self._path = path
        self._slots_per_host = slots_per_host
        self._on_hosts = on_hosts
        self._say = say
        self._popen: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._next = time.monotonic()
        self._last_error = ""

    def next_deadline(self) -> float:
        """Returns the monotonic time by which `step()` must be called."""
        return self._next

    def step(self) -> None:
        """Starts the program if it is due, or kills it if it is slow."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LIMIT_SECONDS
        if self._popen is not None:
            self._popen.kill()
            self._end(self._popen)
            what = f"no end within {_LIMIT_SECONDS:g} s"
            self._note_error(_bad(self._path, what))
            self._next = time.monotonic() + _PERIOD_SECONDS
            return
        self._text = b""
        try:
            self._popen = subprocess.Popen(
                [os.path.abspath(self._path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                preexec_fn=die_with_parent(),  # safe: there are no threads
            )
        except (OSError, ValueError) as error:
            self._note_error(_bad(self._path, str(error)))
            self._next = time.monotonic() + _PERIOD_SECONDS
            return
        assert self._popen.stdout is not None
        self._loop.watch(self._popen.stdout, self._read)

    def _read(self) -> None:
        assert self._popen is not None
        assert self._popen.stdout is not None
        data = os.read(self._popen.stdout.fileno(), _MAX_BYTES)
        self._text += data
        if data and len(self._text) <= _MAX_BYTES:
            return
        is_long = len(self._text) > _MAX_BYTES
        if is_long:
            self._popen.kill()
        status = self._end(self._popen)
        self._next = time.monotonic() + _PERIOD_SECONDS
        try:
            if is_long:
                what = f"more than {_MAX_BYTES:,} bytes"
                raise UsageError(_bad(self._path, what))
            if status != 0:
                raise UsageError(_bad(self._path, f"exit status {status}"))
            found = _parsed(self._path, self._text, self._slots_per_host)
        except UsageError as error:
            self._note_error(str(error))
            return
        self._last_error = ""
        self._on_hosts(found)

    def _note_error(self, text: str) -> None:
        if text != self._last_error:
            self._last_error = text
            self._say(text)

    def close(self) -> None:
        """Ends the program if it runs, and hears no more of it."""
        if self._popen is not None:
            self._popen.kill()
            self._end(self._popen)

    def _end(self, popen: subprocess.Popen[bytes]) -> int:
        """Ends the program if it still runs; returns its status."""
        assert popen.stdout is not None
        self._loop.forget(popen.stdout)
        popen.stdout.close()
        self._popen = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return popen.wait(_END_SECONDS)
        popen.kill()
        return popen.wait()


def _parsed(path: str, text: bytes, slots_per_host: int) -> HostSlots:
    hosts: HostSlots = {}
    for line in text.decode("utf-8", "replace").split():
        try:
            ((name, slots),) = placement.parse_hosts(line)
        except (UsageError, ValueError):
            raise UsageError(_bad(path, repr(line[:_MOST_SHOWN]))) from None
        hosts[name] = hosts.get(name, 0) + (slots or slots_per_host)
    if sum(hosts.values()) > placement.MAX_SLOTS:
        what = f"{sum(hosts.values())} slots, over {placement.MAX_SLOTS}"
        raise UsageError(_bad(path, what))
    return hosts


def _bad(path: str, what: str) -> str:
    return (
        f"`--host-discovery-script` must print lines such as host:4. "
        f"Received: {what} from {path!r}."
    )
