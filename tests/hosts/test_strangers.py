"""Strangers at every port of a job on two hosts, from its start to its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from network import ADDRESSES, Network, finish, free_port, python

# Attacks each port of this host as soon as it listens; prints what it has seen
# when a line comes.
_STRANGER = """
import contextlib, json, os, select, socket, sys, time
from hvd_keras._rendezvous import protocol

IDLE = 150
OTHERS = 12
identity = protocol.Identity(protocol.Role.LEADER, 2, 4, generation=1, pid=1)
kept, seen, answers = [], set(), []


def listeners():
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as table:
            for row in list(table)[1:]:
                words = row.split()
                if words[3] == "0A":
                    digits, port = words[1].split(":")
                    yield digits, int(port, 16)


def attack(host, port):
    def knock():
        sock = socket.create_connection((host, port), 2)
        sock.settimeout(0.2)
        kept.append(sock)
        return sock

    for _ in range(IDLE):
        knock()
    for number in range(OTHERS):
        with contextlib.suppress(OSError):
            sock = knock()
            if number % 3 == 0:
                sock.sendall(os.urandom(400))
            elif number % 3 == 1:
                sock.sendall(b"\\0" * 7)  # a part of something
            else:  # another secret
                hello = sock.recv(protocol.HELLO_BYTES)
                if hello.startswith(protocol.MAGIC):
                    nonce = hello[len(protocol.MAGIC):]
                    sock.sendall(protocol.proof(b"5b" * 16, nonce, identity))
                    sock.settimeout(2)
                    answers.append(sock.recv(1).hex())


while not select.select([sys.stdin], [], [], 0.002)[0]:
    for digits, port in listeners():
        if (digits, port) not in seen:
            seen.add((digits, port))
            host = ".".join(str(b) for b in bytes.fromhex(digits)[::-1])
            with contextlib.suppress(OSError):
                attack(host, port)
print(json.dumps({"places": sorted(seen), "answers": answers}))
"""

_RANK = """
import sys, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _native
hvd.init(process_sets=[[0, 2], [1, 3]])
for step in range(300):
    (sums,) = _native.core().allreduce(
        "x", [np.full(1000, hvd.rank() + step, "f4")], 1
    )
    assert (sums == 6 + 4 * step).all()
    time.sleep(0.01)
print("all steps")
"""


@pytest.fixture
def strangers(network: Network) -> Iterator[list[subprocess.Popen[str]]]:
    found = [
        subprocess.Popen(
            network.command(host, *python(_STRANGER)),
            env=network.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in (0, 1)
    ]
    yield found
    for one in found:
        one.kill()
        one.communicate()


def test_strangers_at_all_ports_harm_nobody(
    network: Network, strangers: list[subprocess.Popen[str]]
) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *python(_RANK),
            HVD_SECRET="5a" * 32,
        )
        for host in (0, 1)
    ]  # fmt: skip
    for job in jobs:
        status, _, stderr = finish(job, 60)
        assert status == 0, stderr
    seen = []
    answers = []
    for host, stranger in enumerate(strangers):
        told = json.loads(stranger.communicate("end\n", timeout=30)[0])
        own = [int(part) for part in ADDRESSES[host].split(".")]
        # sshd of the tests is the only one that is not ours.
        assert {digits for digits, _ in told["places"]} == {
            bytes(own[::-1]).hex().upper()
        }
        seen.append(len(told["places"]))
        answers += told["answers"]
    # hvdrun, MPI, and the leaders of the job and of two process sets.
    assert seen[0] >= 3
    # Whoever lacks the secret is told nothing.
    assert answers
    assert set(answers) == {""}
