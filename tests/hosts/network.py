"""Hosts on one machine, as namespaces, the second with a real sshd.

This needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clean_environ import clean_environ

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, f"{ROOT}/tools")

from two_hosts import ADDRESSES, NAMES, Hosts, ip  # noqa: E402

SSH_PORT = 2222
# Settings of jobs that notice a silent host after a second.
QUICK = {"HVD_HEARTBEAT_SECONDS": "0.2", "HVD_HEARTBEAT_TIMEOUT": "1"}
_SSHD = "/usr/sbin/sshd"  # it wants its whole path
_numbers = itertools.count()
_ports = itertools.count()


class Network:
    """The hosts. Their processes end with it."""

    def __init__(self, folder: Path, num_hosts: int = 2) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root to make network namespaces")
        if shutil.which("ip") is None:
            pytest.skip("needs `ip` (apt-get install iproute2)")
        self.folder = folder
        prefix = f"hvd{os.getpid()}n{next(_numbers)}"
        self._hosts = Hosts(num_hosts, prefix)
        self._sshd: subprocess.Popen[bytes] | None = None
        try:
            self._hosts.make()
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"cannot make namespaces: {error.stderr.decode()}")

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self._hosts.spaces)

    def close(self) -> None:
        """Ends all processes and removes the namespaces."""
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()
        self._hosts.close()

    def command(self, host: int, *command: str) -> list[str]:
        """Returns what runs a command on a host."""
        return self._hosts.command(host, *command)

    def start(
        self, host: int, *command: str, **extra: str
    ) -> subprocess.Popen[str]:
        """Starts a command on a host."""
        return subprocess.Popen(
            self.command(host, *command),
            env=self.environ(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def hvdrun(
        self, host: int, *arguments: str, **extra: str
    ) -> subprocess.Popen[str]:
        """Starts hvdrun on a host."""
        command = [sys.executable, "-m", "hvd_keras.run", *arguments]
        return self.start(host, *command, **extra)

    def environ(self, **extra: str) -> dict[str, str]:
        """Returns an environment without any job, with our ssh in front."""
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return clean_environ(**{"PATH": path, **extra})

    def start_sshd(self, host: int = 1) -> None:
        """Starts sshd on a host; `ssh` by its name finds it on the others."""
        name, address = NAMES[host], ADDRESSES[host]
        if not os.path.exists(_SSHD) or shutil.which("ssh") is None:
            pytest.skip("needs ssh and sshd (apt-get install openssh-server)")
        folder = self.folder
        for kind in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                 str(folder / kind)], check=True
            )  # fmt: skip
        key = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[{address}]:{SSH_PORT} {key}")
        (folder / "config").write_text(
            f"Host {name} {address}\n"
            f"  HostName {address}\n  Port {SSH_PORT}\n  User root\n"
            f"  IdentityFile {folder}/user\n"
            f"  UserKnownHostsFile {folder}/known\n"
        )
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "ssh"
        real = shutil.which("ssh")
        wrapper.write_text(f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
        wrapper.chmod(0o755)
        os.makedirs("/run/sshd", exist_ok=True)
        sshd = [
            _SSHD, "-D", "-e", "-p", str(SSH_PORT), "-f", "none",
            "-h", f"{folder}/host", "-o", f"ListenAddress={address}",
            "-o", f"AuthorizedKeysFile={folder}/user.pub",
            "-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PidFile=none",
            "-o", "MaxStartups=100",
            "-o", "Subsystem=sftp internal-sftp",
            # The user's own shell may do anything when it starts.
            "-o", f"SetEnv=HOME={folder}",
        ]  # fmt: skip
        with open(folder / "sshd.log", "wb") as log:
            self._sshd = subprocess.Popen(
                self.command(host, *sshd), stdout=log, stderr=log
            )
        wait_for(lambda: self._answers(address), 10)

    def _answers(self, address: str) -> bool:
        target = (address, SSH_PORT)
        code = f"import socket; socket.create_connection({target}, 1)"
        space = f"--net=/run/netns/{self._hosts.spaces[0]}"
        done = subprocess.run(
            ["nsenter", space, sys.executable, "-c", code], capture_output=True
        )
        return done.returncode == 0

    def cut(self, host: int = 1) -> None:
        """Takes the cable out of a host."""
        ip("-n", self._hosts.spaces[host], "link", "set", "eth0", "down")

    def mend(self, host: int = 1) -> None:
        """Puts the cable in again."""
        ip("-n", self._hosts.spaces[host], "link", "set", "eth0", "up")

    @contextlib.contextmanager
    def shaped(self, rate: str) -> Iterator[None]:
        """Limits what each host sends, to a rate such as 1gbit."""
        options = f"root tbf rate {rate} burst 128kb latency 50ms".split()
        try:
            for space in self._hosts.spaces:
                _tc(space, "add", *options)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("needs `tc` and a kernel with tbf")
        try:
            yield
        finally:
            for space in self._hosts.spaces:
                _tc(space, "del", "root")

    @contextlib.contextmanager
    def slow_link(self, host: int, rate: str) -> Iterator[None]:
        """Limits what one host sends, to a rate such as 20mbit."""
        space = self._hosts.spaces[host]
        options = f"root tbf rate {rate} burst 32kb latency 400ms".split()
        _tc(space, "add", *options)
        try:
            yield
        finally:
            _tc(space, "del", "root")

    @contextlib.contextmanager
    def delayed(self, milliseconds: float) -> Iterator[None]:
        """Makes the cable between two hosts long; 0 leaves it as it is."""
        if milliseconds == 0:
            yield
            return
        ports = ("port0", "port1")
        for port in ports:
            ip("-n", self._hosts.switch, "link", "set", port, "nomaster")
        program = os.path.join(ROOT, "benchmarks", "_delay_line.py")
        command = ["nsenter", f"--net=/run/netns/{self._hosts.switch}"]
        command += [sys.executable, program, *ports, str(milliseconds)]
        line = subprocess.Popen(command)
        try:
            yield
        finally:
            line.kill()
            line.wait()
            for port in ports:
                ip(
                    "-n",
                    self._hosts.switch,
                    "link",
                    "set",
                    port,
                    "master",
                    "switch",
                )

    def processes(self, text: str) -> list[int]:
        """Returns the pids, as seen from here, whose command has `text`.

        Those are left out whose network is not that of one of the hosts.
        """
        spaces = {
            os.stat(f"/run/netns/{space}").st_ino
            for space in self._hosts.spaces
        }
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().split(b"\0")
                is_here = os.stat(path / "ns/net").st_ino in spaces
            except OSError:
                continue
            program = os.path.basename(command[0])
            if program in (b"nsenter", b"unshare", b"sh", b"sshd:"):
                continue
            if is_here and text.encode() in b" ".join(command):
                found.append(int(path.name))
        return found


def _tc(space: str, verb: str, *options: str) -> None:
    command = ["tc", "-n", space, "qdisc", verb, "dev", "eth0", *options]
    subprocess.run(command, check=True)


def python(code: str) -> list[str]:
    """Returns the command that runs `code` in a new Python."""
    return [sys.executable, "-c", textwrap.dedent(code)]


def finish(
    job: subprocess.Popen[str], seconds: float = 60
) -> tuple[int, str, str]:
    """Returns status and output of a job; after `seconds` fails the test."""
    try:
        stdout, stderr = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGKILL)
        stdout, stderr = job.communicate(timeout=10)
        raise AssertionError(
            f"no end within {seconds} s:\n{stdout}\n{stderr}"
        ) from None
    return job.returncode, stdout, stderr


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    """Waits until `condition()` is true; after `seconds` fails the test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def free_port() -> int:
    """Returns a port that is free on each host.

    Only tests listen there, and no connection is given one of these for its
    own end.
    """
    return 10_000 + (os.getpid() + next(_ports)) % 20_000
