"""Starts the agents of other hosts, over ssh or srun."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.run.ranks.process import die_with_parent
from hvd_keras.run.system.loop import Loop
from hvd_keras.run.usage import UsageError

_PACKAGE_PARENT = str(Path(__file__).parents[3])
_MAX_WORDS_BYTES = 4 << 10
_NOT_FOUND = 127  # the status of a shell that finds no program


class Starter:
    """An ssh or srun that runs agents."""

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        configuration: Mapping[str, Any],
        on_end: Callable[[Starter], None],
    ) -> None:
        """Starts it.

        Args:
            loop: Calls when it says something or ends.
            argv: Program and arguments.
            configuration: The agents get this on their standard input.
            on_end: Called when it has ended.
        """
        self._program = argv[0]
        self._loop = loop
        self._on_end = on_end
        self._words = b""
        self.exit_status: int | None = None
        try:
            # In a session of its own: Ctrl-C is for hvdrun alone.
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # safe: there are no threads
            )
        except FileNotFoundError:
            raise UsageError(
                f"`{argv[0]}` must be installed to start ranks on other "
                "hosts. Received: no such program in PATH."
            ) from None
        self._pidfd = os.pidfd_open(self._popen.pid)
        assert self._popen.stdin is not None
        assert self._popen.stderr is not None
        self._stderr = self._popen.stderr.fileno()
        loop.watch(self._pidfd, self._note_end)
        loop.watch(self._stderr, self._read)
        with contextlib.suppress(BrokenPipeError):  # it says why by itself
            line = json.dumps(configuration).encode() + b"\n"
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    def describe_end(self) -> str:
        """Returns how it ended, and what it said last."""
        words = last_words(self._words.decode("utf-8", "replace"))
        hint = ""
        if self.exit_status == _NOT_FOUND:
            hint = (
                " Is that Python there? Name the one of that host with "
                "--remote-python."
            )
        if self.exit_status is not None and self.exit_status < 0:
            name = signal.Signals(-self.exit_status).name
            return f"{self._program} was killed by {name}: {words}"
        return (
            f"{self._program} ended with status {self.exit_status}: "
            f"{words or 'no message'}.{hint}"
        )

    def kill(self) -> None:
        """Ends it, and the agents with it."""
        self._popen.kill()
        self._popen.wait()

    def _read(self) -> None:
        data = os.read(self._stderr, _MAX_WORDS_BYTES)
        if not data:
            self._loop.forget(self._stderr)
        self._words = (self._words + data)[-_MAX_WORDS_BYTES:]

    def _note_end(self) -> None:
        self._loop.forget(self._pidfd)
        os.close(self._pidfd)
        self.exit_status = self._popen.wait()
        os.set_blocking(self._stderr, False)
        with contextlib.suppress(BlockingIOError):  # what came just before
            while data := os.read(self._stderr, _MAX_WORDS_BYTES):
                self._words = (self._words + data)[-_MAX_WORDS_BYTES:]
        self._on_end(self)


def last_words(text: str) -> str:
    """Returns the last lines as one, without a full stop."""
    lines = text.strip().splitlines()
    words = " | ".join(line.strip() for line in lines[-3:] if line.strip())
    return words.rstrip(".")


def agent_command(remote_python: str | None) -> list[str]:
    """Returns the command that runs an agent; its input says the rest."""
    command = [
        remote_python or sys.executable,
        "-m",
        "hvd_keras.run.hosts.agent",
    ]
    is_installed = _PACKAGE_PARENT in sysconfig.get_paths().values()
    if remote_python is None and not is_installed:
        command = ["env", f"PYTHONPATH={_PACKAGE_PARENT}", *command]
    return command


def ssh_options(port: int | None, identity_file: str | None) -> list[str]:
    """Returns ssh and its options; it never asks, and checks keys as always."""
    argv = ["ssh", "-o", "BatchMode=yes", "-T"]
    if port is not None:
        argv += ["-p", str(port)]
    if identity_file is not None:
        argv += ["-i", identity_file]
    return argv


def ssh_command(
    options: Sequence[str], host: str, command: Sequence[str]
) -> list[str]:
    """Returns the arguments that run `command` on `host`."""
    return [*options, "--", host, "exec " + shlex.join(command)]


def ssh_address(options: Sequence[str], host: str) -> str:
    """Returns the name or address that ssh connects to for `host`."""
    try:
        done = subprocess.run(
            [*options, "-G", "--", host],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return host
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        if name == "hostname" and value:
            return value
    return host


def srun_command(hosts: Sequence[str], command: Sequence[str]) -> list[str]:
    """Returns the arguments that run `command` once on each host."""
    return [
        "srun",
        f"--nodelist={','.join(hosts)}",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        "--overlap",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--quiet",
        *command,
    ]
