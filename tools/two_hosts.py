#!/usr/bin/env python3
"""Runs a job on two or three "hosts" of this machine, to try several hosts.

    tools/two_hosts.py -np 2 python examples/keras_digits.py

Each host has its own network, processes, mounts and name (Linux namespaces). A
cable (veth) joins each with a switch (bridge). `-np` counts the ranks of one
host; all arguments but `--hosts` are hvdrun's. Root is needed only where the
system keeps users from making namespaces. Everything ends with this program.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time

NAMES = ("hosta", "hostb", "hostc", "hostd")
ADDRESSES = ("10.98.17.1", "10.98.17.2", "10.98.17.3", "10.98.17.4")
PORT = 29400
_USAGE = "tools/two_hosts.py [--hosts N] -np RANKS_OF_A_HOST [...] command ..."
_MARK = "HVD_TWO_HOSTS_INSIDE"
_LINK_SECONDS = 10.0


class Hosts:
    """Hosts on this machine. Not thread-safe."""

    def __init__(self, num_hosts: int, prefix: str = "") -> None:
        """Names the hosts; `make` makes them.

        Args:
            num_hosts: Their number, at most that of `NAMES`.
            prefix: Begins the names of the namespaces.
        """
        self.spaces = [f"{prefix}{name}" for name in NAMES[:num_hosts]]
        self.switch = f"{prefix}switch"

    def make(self) -> None:
        """Makes the hosts; this process must be root, if only of a namespace.

        Raises:
            subprocess.CalledProcessError: That is not allowed; its `stderr`
                says what.
        """
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        for i, space in enumerate(self.spaces):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("link", "add", "eth0", "netns", space, "type", "veth",
                "peer", "name", f"port{i}", "netns", self.switch)  # fmt: skip
            ip("-n", self.switch, "link", "set", f"port{i}",
                "master", "switch", "up")  # fmt: skip
            ip("-n", space, "addr", "add", f"{ADDRESSES[i]}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
        subprocess.run(self.command(0, "true"), check=True, capture_output=True)
        # The kernel takes up to a second to tell programs of a new cable.
        deadline = time.monotonic() + _LINK_SECONDS
        while not all(map(_is_up, self.spaces)):
            if time.monotonic() > deadline:
                raise TimeoutError("The cables must be up.")
            time.sleep(0.05)

    def close(self) -> None:
        """Removes the hosts, once their processes have ended."""
        for space in (*self.spaces, self.switch):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def command(self, host: int, *command: str) -> list[str]:
        """Returns what runs a command on a host."""
        return [
            "nsenter",
            f"--net=/run/netns/{self.spaces[host]}",
            "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child",
            "--mount-proc", "sh", "-c",
            # MPI looks for network cards in /sys.
            "mount -t sysfs none /sys 2> /dev/null; "
            f'hostname {NAMES[host]}; exec "$@"', "sh", *command,
        ]  # fmt: skip


def ip(*arguments: str) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _is_up(space: str) -> bool:
    link = ["ip", "-n", space, "link", "show", "eth0"]
    return b"state UP" in subprocess.check_output(link)


def _begin_again_inside() -> None:
    """Runs this program in namespaces of its own, which end with it."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            sys.exit(f"two_hosts: needs `{program}` (iproute2, util-linux).")
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork"]
    unshare += ["--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        sys.exit(
            "two_hosts: this system must allow namespaces. Try as root: "
            f"sudo {sys.executable} {' '.join(sys.argv)}"
        )
    command = [*unshare, sys.executable, *sys.argv]
    os.execvpe(unshare[0], command, {**os.environ, _MARK: "1"})


def _run(num_hosts: int, arguments: list[str]) -> int:
    hosts = Hosts(num_hosts)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        hosts.make()
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or b"").decode().strip()
        sys.exit(f"two_hosts: cannot make hosts: {reason}")
    environ = {n: v for n, v in os.environ.items() if n != _MARK}
    environ["HVD_SECRET"] = secrets.token_hex(32)
    jobs = [
        subprocess.Popen(
            hosts.command(
                host, sys.executable, "-m", "hvd_keras.run",
                "--nnodes", str(num_hosts), "--node-rank", str(host),
                "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", *arguments,
            ),
            env=environ,
            stdin=None if host == 0 else subprocess.DEVNULL,
            # The first host shows what all ranks and hosts say.
            stderr=None if host == 0 else subprocess.DEVNULL,
        )
        for host in range(num_hosts)
    ]  # fmt: skip
    # Ctrl-C goes to hvdrun as well, which ends the job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    statuses = [job.wait() for job in jobs]
    return statuses[0]


def main() -> int:
    arguments = sys.argv[1:]
    num_hosts = 2
    if arguments[:1] == ["--hosts"] and arguments[1:2] in (["2"], ["3"]):
        num_hosts = int(arguments[1])
        arguments = arguments[2:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: {_USAGE}\n\n{__doc__}")
        return 0 if arguments else 2
    if _MARK not in os.environ:
        _begin_again_inside()
    return _run(num_hosts, arguments)


if __name__ == "__main__":
    sys.exit(main())
