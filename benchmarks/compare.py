"""Times this project and its peers in turns, within one run.

    python benchmarks/compare.py --np=2 --json=build/compare.jsonl

It starts all ranks of all installed packages once; they wait. In each round,
one package after the other times each case, so that other work on the machine
hits all alike. Before a round it classes the machine by how long a flag takes
between two cores (`make bench-core` builds the program for this). For each
class it prints the median over all calls of the slowest rank, in ms, and its
ratio to ours.

Packages: this one, TensorFlow's own collectives, torch (Gloo), mpi4py and
Horovod. It skips those that are not installed. One that wants other versions
may have a Python of its own, with absl-py and NumPy:

    python benchmarks/compare.py --pythons=horovod=/tmp/horovod/bin/python
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from _peers import PEERS, Peer
from _results import figure, machine_state, write
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks of each package.", 1)
flags.DEFINE_integer("rounds", 10, "Rounds through all cases.", 1)
flags.DEFINE_list("peers", list(PEERS), "Packages to compare.")
flags.DEFINE_list("pythons", [], "Pythons of packages, as NAME=PATH.")
flags.DEFINE_list("cases", [], "Cases to time. Defaults to all.")
flags.DEFINE_integer("port", 29600, "First TCP port, on 127.0.0.1.", 1024)

SHAPES_FILE = pathlib.Path(__file__).with_name("resnet50_shapes.json")
# Case: its shapes, and how many calls to time in a round.
CASES: dict[str, tuple[list[list[int]], int]] = {
    "4 B": ([[1]], 30),
    "1 MB": ([[250_000]], 10),
    "64 MB": ([[16_000_000]], 2),
    "ResNet-50": (
        json.loads(SHAPES_FILE.read_text())["conv_without_bias"],
        2,
    ),
    "1000 x 1 KB": ([[256]] * 1000, 2),
}
TIMEOUT_SECONDS = 120


def work(peer: Peer) -> None:
    """Runs in a rank: times the cases that it reads from the socket."""
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["COMPARE_SOCKET"])
    stream = channel.makefile("rw")
    peer.start()
    made: dict[str, dict] = {}
    peer.meet()
    print(json.dumps(peer.name), file=stream, flush=True)
    for line in stream:
        case, way = json.loads(line)
        shapes, num_calls = CASES[case]
        if case not in made:
            made[case] = peer.calls(shapes, case.replace(" ", ""))
        calls = made[case]
        calls[way]()  # the first call traces
        times = []
        for _ in range(num_calls):
            peer.meet()
            start = time.perf_counter()
            calls[way]()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), file=stream, flush=True)
    os._exit(0)  # some packages would not end


# The seconds of all calls by case, way (single or grouped) and package.
Times = dict[tuple[str, str, str], list[float]]


class Ranks:
    """The running ranks of one package."""

    def __init__(self, peer: Peer, listener: socket.socket, port: int) -> None:
        worker = [peer.python, __file__, f"--worker={peer.name}"]
        self._processes = [
            subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_CPU_ALLOCATOR_USE_BFC": "1",
                    "COMPARE_SOCKET": listener.getsockname(),
                    **environment,
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command, environment in peer.commands(FLAGS.np, worker, port)
        ]
        self._channels: list[socket.socket] = []
        self._streams = []
        for _ in range(FLAGS.np):
            channel, _ = listener.accept()
            channel.settimeout(TIMEOUT_SECONDS)
            self._channels.append(channel)
            self._streams.append(channel.makefile("rw"))
        for stream in self._streams:
            assert json.loads(stream.readline()) == peer.name

    def time(self, case: str, way: str) -> list[float]:
        """Returns the seconds of each call, on the slowest rank."""
        for stream in self._streams:
            print(json.dumps([case, way]), file=stream, flush=True)
        times = [json.loads(stream.readline()) for stream in self._streams]
        slowest: list[float] = np.max(times, axis=0).tolist()
        return slowest

    def stop(self) -> None:
        """Ends the ranks by closing their sockets; kills them if need be."""
        for channel in self._channels:
            channel.shutdown(socket.SHUT_RDWR)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def print_table(times: Times) -> None:
    names = list(dict.fromkeys(name for _, _, name in times))
    print("| case | way |" + "".join(f" {name} |" for name in names))
    print("|---|---|" + "---|" * len(names))
    for case, way in dict.fromkeys((case, way) for case, way, _ in times):
        medians = {
            name: float(np.median(times[case, way, name])) * 1e3
            for name in names
            if (case, way, name) in times
        }
        cells = []
        for name in names:
            cell = f"{medians[name]:.3g}" if name in medians else ""
            if name != names[0] and name in medians:
                cell += f" ({medians[name] / medians[names[0]]:.1f} x)"
            cells.append(f" {cell} |")
        print(f"| {case} | {way} |" + "".join(cells))


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    if FLAGS.worker is not None:
        work(PEERS[FLAGS.worker])
        return
    for item in FLAGS.pythons:
        name, _, path = item.partition("=")
        PEERS[name].python = path
    peers = [PEERS[name] for name in FLAGS.peers]
    peers = [p for p in peers if p.is_installed() and p.min_ranks <= FLAGS.np]
    ranks: dict[str, Ranks] = {}
    times_by_state: dict[str, Times] = {}
    with tempfile.TemporaryDirectory() as directory:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{directory}/socket")
        listener.listen(64)
        listener.settimeout(TIMEOUT_SECONDS)
        try:
            for number, peer in enumerate(peers):
                port = FLAGS.port + 10 * number
                ranks[peer.name] = Ranks(peer, listener, port)
            for round_number in range(FLAGS.rounds + 1):
                times = times_by_state.setdefault(machine_state(), {})
                for case in FLAGS.cases or CASES:
                    ways = ["single", "grouped"]
                    for way in ways[: len(CASES[case][0])]:
                        for name, running in ranks.items():
                            found = running.time(case, way)
                            if round_number > 0:
                                key = (case, way, name)
                                times.setdefault(key, []).extend(found)
        finally:
            for running in ranks.values():
                running.stop()
            listener.close()
    for state, times in times_by_state.items():
        print(f"Machine: {state}")
        print_table(times)
        write(
            "compare",
            FLAGS.np,
            [
                {
                    **figure(f"{case}, {way}", name, seconds),
                    "machine": state,
                }
                for (case, way, name), seconds in times.items()
            ],
        )


flags.DEFINE_string("worker", None, "Set in the ranks that this starts.")

if __name__ == "__main__":
    app.run(main)
