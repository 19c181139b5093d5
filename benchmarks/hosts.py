"""Compares allreduces over two hosts with MPI's own; makes the hosts itself.

    sudo python benchmarks/hosts.py --rate=1gbit

The hosts are two network namespaces of this machine with a switch between
them, so this needs root. `bare` is MPI alone, one rank a host, in place: what
the network allows. `ours` has --np ranks a host. They run in turns. The table
has the median over all calls, in ms, of the slowest rank; `ratio`, to `bare`,
is the median over the rounds. `sent` is what the interface of a host sends for
a call of ours, over the bytes of the tensors.

With --delay_ms every frame takes so long, which shows how many round trips of
the network an allreduce of 4 bytes inside a `tf.function` waits for.

With --compression=int8, or another, the same calls run with that, too, in
turns; its `ratio` is to `ours` without.

With --local_updates=20 a CNN trains on digits, with a reduction in each step,
and with a meeting every 20; with --digits it trains with --compression, too.
With --text a small Transformer does so, on Python's own sources.
`step` is a step's time over that with reductions, the median over the rounds;
`sent` likewise. With --seeds each also trains from so many seeds, and
`accuracy` is the mean; --rounds=0 measures that alone. --optimizer=sgd is SGD
with momentum. --compression=powersgd4 and acpsgd4 are of rank 4. With --advice
each training with reductions is recorded, and `advice` is what the report of it
says that the way would take, over what it takes in that round.

With --autotune it compares what `hvdrun --autotune` finds, see `autotune.py`.

With --fit the small CNN of `fit.py` trains on all hosts, with --compression
too, and on as many ranks of one host, which train alone, too. Both jobs are
there at once and take turns of seconds; the ratio is to one host.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import _results
import numpy as np
from _host_jobs import (
    ADDRESSES,
    HERE,
    SECONDS,
    Network,
    finish,
    free_port,
    json_lines,
    run,
)
from absl import app, flags

from hvd_keras._job.hosts.pmi import Pmi
from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.predictions import network_of
from hvd_keras._observe.recording import read

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks of a host.", 1)
flags.DEFINE_string("rate", None, "What a host may send, such as 1gbit.")
flags.DEFINE_integer("rounds", 5, "Rounds of all ways.", 0)
flags.DEFINE_integer("calls", 10, "Timed calls of each size in a round.", 1)
flags.DEFINE_float("delay_ms", None, "Measure only delays, with this one.")
flags.DEFINE_bool("fit", False, "Train a CNN, and measure only this.")
flags.DEFINE_bool("autotune", False, "Measure only the autotuner.")
flags.DEFINE_multi_enum(
    "compression",
    [],
    ["bf16", "fp16", "int8", "int4", "powersgd4", "acpsgd4"],
    "Compare it.",
)
flags.DEFINE_multi_integer(
    "local_updates", [], "Steps between two meetings; measures only these."
)
flags.DEFINE_bool("digits", False, "Train on digits only.")
flags.DEFINE_bool("text", False, "Train on text only.")
flags.DEFINE_bool(
    "advice", False, "Compare with them what a report says of digits or text."
)
flags.DEFINE_enum("optimizer", "adam", ["adam", "sgd"], "Of digits and text.")
flags.DEFINE_integer("seeds", 0, "Trainings of each way of them.", 0)
flags.DEFINE_integer("steps", 300, "Of each of these trainings.", 1)
flags.DEFINE_multi_integer(
    "bytes", [4, 8 << 20, 102_228_128], "Bytes of the tensors."
)
NUM_HOSTS = 2


def bare(network: Network) -> list[dict[str, Any]]:
    """Returns what MPI without us prints."""
    ends, pmis, processes = [], [], []
    sizes = map(str, FLAGS.bytes)
    command = [sys.executable, str(HERE / "_bare_mpi.py"), str(FLAGS.calls)]
    command += sizes
    for host in range(NUM_HOSTS):
        ours, theirs = socket.socketpair()
        environ = network.environ(
            PMI_FD=str(theirs.fileno()),
            PMI_RANK=str(host),
            PMI_SIZE=str(NUM_HOSTS),
            # Memory is not shared between hosts, though it is here.
            UCX_TLS="tcp,self",
        )
        with theirs:
            processes.append(
                subprocess.Popen(
                    network.command(host, *command),
                    env=environ,
                    stdout=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    text=True,
                )
            )
        ends.append(ours)
        pmis.append(Pmi(ours, f"bare{os.getpid()}", NUM_HOSTS))
    _serve(pmis)
    outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise app.UsageError("MPI has failed; see above.")
    for end in ends:
        end.close()
    return json_lines(outputs[0])


def _serve(pmis: list[Pmi]) -> None:
    open_pmis = list(pmis)
    while open_pmis:
        waiting = [pmi for pmi in open_pmis if not pmi.is_at_barrier]
        if not waiting:
            puts: dict[str, str] = {}
            for pmi in pmis:
                puts.update(pmi.puts)
            for pmi in pmis:
                pmi.leave_barrier(puts)
            continue
        for pmi in select.select(waiting, [], [])[0]:
            if not pmi.serve():
                open_pmis.remove(pmi)


def ours(network: Network, *command: str) -> list[dict[str, Any]]:
    """Returns the figures that a job of --np ranks a host prints."""
    return json_lines(run(network, FLAGS.np, *command))


def compare(network: Network) -> None:
    """Prints the table of allreduces."""
    sizes = list(map(str, FLAGS.bytes))
    rounds: list[dict[str, list[dict[str, Any]]]] = []
    compressions = {"ours": "none"} | {way: way for way in FLAGS.compression}
    for _ in range(FLAGS.rounds):
        rounds.append({"bare": bare(network)})
        for way, compression in compressions.items():
            command = [str(HERE / "_hosts_rank.py"), str(FLAGS.calls)]
            rounds[-1][way] = ours(network, *command, compression, *sizes)
    print(f"{'bytes':>12} {'way':>9} {'ms':>9} {'ratio':>6} {'sent':>6}")
    for i, size in enumerate(FLAGS.bytes):
        figures = []
        for way in rounds[0]:
            to = "ours" if way in FLAGS.compression else "bare"
            lines = [round_[way][i] for round_ in rounds]
            ms = np.concatenate([line["ms"] for line in lines])
            ratio = np.median(
                [
                    np.median(round_[way][i]["ms"])
                    / np.median(round_[to][i]["ms"])
                    for round_ in rounds
                ]
            )
            sent = np.median([line.get("sent", np.nan) for line in lines])
            print(
                f"{size:12} {way:>9} {np.median(ms):9.3f} {ratio:6.2f} "
                f"{sent / size:6.3f}"
            )
            figures.append(_results.figure(f"{size} bytes", way, ms / 1e3))
        _results.write(
            f"hosts, {FLAGS.rate or 'unshaped'}", NUM_HOSTS * FLAGS.np, figures
        )
    init = np.median([round_["ours"][0]["init_ms"] for round_ in rounds])
    print(f"init() on rank 0: {init:.0f} ms")


def measure_delay(network: Network) -> None:
    """Prints the time of a small allreduce beside a round trip."""
    address = [ADDRESSES[0], str(free_port()), str(FLAGS.calls)]
    for _ in range(FLAGS.rounds):
        program = str(HERE / "_hosts_latency.py")
        (line,) = ours(network, program, *address)
        ping, small = (
            float(np.median(line[key])) for key in ("ping_ms", "allreduce_ms")
        )
        print(
            f"4 bytes: {small:.3f} ms, a round trip: {ping:.3f} ms, "
            f"{small / ping:.1f} round trips"
        )


def said_of(recording: pathlib.Path, ways: list[str]) -> dict[str, float]:
    """Returns the milliseconds of a step that a report says of each way."""
    network = network_of(analyze(read(recording))) if FLAGS.advice else None
    if network is None:
        return {}
    return {
        way: 1e-6
        * (network.local(int(way)) if way.isdigit() else network.packed(way))
        for way in ways
        if way in ("int8", "int4") or (way.isdigit() and way != "0")
    }


def train_ways(network: Network) -> None:
    """Prints the table of ways to train on digits or text."""
    task = "text" if FLAGS.text else "digits"
    ways = ["0", *map(str, FLAGS.local_updates), *FLAGS.compression]
    program = str(HERE / "_local_rank.py")
    steps = str(2 * max(FLAGS.local_updates, default=50))
    recordings = network.folder / "recordings"
    text = run(
        network,
        FLAGS.np,
        program,
        task,
        str(FLAGS.rounds),
        steps,
        str(FLAGS.seeds),
        str(FLAGS.steps),
        FLAGS.optimizer,
        *ways,
        settings={"RECORD_TO": str(recordings)} if FLAGS.advice else {},
    )
    (line,) = json_lines(text)
    base = line["ways"]["0"]
    said = [said_of(recordings / str(i), ways) for i in range(FLAGS.rounds)]
    print(
        f"{'way':>9} {'ms':>8} {'step':>6} {'sent':>7} {'accuracy':>8} "
        f"{'advice':>6}"
    )
    for way, of in line["ways"].items():
        step, sent = (
            np.median(np.divide(of[key], base[key])) if base[key] else np.nan
            for key in ("ms", "sent")
        )
        ms = np.median(of["ms"]) if of["ms"] else np.nan
        accuracy = np.mean(of["accuracy"]) if of["accuracy"] else np.nan
        advice = np.median(
            [
                one.get(way, np.nan) / ms
                for one, ms in zip(said, of["ms"], strict=False)
            ]
            or np.nan
        )
        print(
            f"{way:>9} {ms:8.1f} {step:6.3f} {sent:7.4f} {accuracy:8.4f} "
            f"{advice:6.2f}"
        )
    print(json.dumps(line))
    _results.write(
        f"local updates, {FLAGS.rate or 'unshaped'}",
        NUM_HOSTS * FLAGS.np,
        [
            _results.figure(f"step of {task}", way, np.divide(of["ms"], 1e3))
            for way, of in line["ways"].items()
            if of["ms"]
        ],
    )


def train(network: Network, bits_a_second: float | None) -> None:
    """Prints the times of a step of `fit.py`, beside those of one host."""
    program = str(HERE / "_fit_rank.py")
    settings = [str(FLAGS.rounds), "12"]  # steps of a turn
    turns = [str(network.folder / job) for job in ("one", "all")]
    with ThreadPoolExecutor() as pool:
        command = [program, turns[0], *settings, "none", "alone"]
        one = pool.submit(of_one_host, network, *command)
        command = [program, turns[1], *settings, "none", *FLAGS.compression]
        both = pool.submit(ours, network, *command)
        jobs: list[tuple[str, Future[Any]]]
        jobs = [(turns[0], one), (turns[1], both)]
        for number in range(FLAGS.rounds + 1):
            # Who ends a round begins the next one.
            for turn, job in jobs if number % 2 else reversed(jobs):
                pathlib.Path(f"{turn}.{number}").touch()
                done = pathlib.Path(f"{turn}.{number}.done")
                while not done.exists() and not job.done():
                    time.sleep(0.01)
    one_host, (hosts,) = one.result(), both.result()
    if bits_a_second is not None:
        share = 2 * (NUM_HOSTS - 1) / NUM_HOSTS
        num_bits = 32 * hosts["parameters"] * share
        print(f"the wire: {1e3 * num_bits / bits_a_second:.1f} ms")
    base = one_host["ms"].pop("none")
    ways = {"one host": base, **hosts["ms"], **one_host["ms"]}
    for way, of_way in ways.items():
        ratio = np.median(np.divide(of_way, base))
        print(
            f"fit, {way:>12}: {np.median(of_way):6.1f} ms a step, {ratio:.2f}"
        )


def of_one_host(network: Network, *command: str) -> dict[str, Any]:
    """Returns the figures that as many ranks of one host print."""
    ranks = str(NUM_HOSTS * FLAGS.np)
    job = network.hvdrun(0, "-np", ranks, "--", sys.executable, *command)
    status, out, error = finish(job, SECONDS)
    if status != 0:
        raise app.UsageError(f"The job has failed:\n{out}\n{error}")
    (line,) = json_lines(out)
    return line


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    bits_a_second = None
    if FLAGS.rate is not None:
        bits_a_second = 1e9 * float(FLAGS.rate.removesuffix("gbit"))
    with tempfile.TemporaryDirectory(prefix="hvd-hosts-") as folder:
        network = Network(pathlib.Path(folder))
        try:
            if FLAGS.delay_ms is not None:
                with network.delayed(FLAGS.delay_ms):
                    measure_delay(network)
                return
            with network.shaped(FLAGS.rate) if FLAGS.rate else nullcontext():
                if FLAGS.local_updates or FLAGS.digits or FLAGS.text:
                    train_ways(network)
                    return
                if FLAGS.autotune:
                    program = str(HERE / "autotune.py")
                    rounds = f"--rounds={FLAGS.rounds}"
                    print(
                        run(
                            network, FLAGS.np, program, rounds, "--kilobytes=64"
                        )
                    )
                    return
                if FLAGS.fit:
                    train(network, bits_a_second)
                    return
                compare(network)
        finally:
            network.close()


if __name__ == "__main__":
    app.run(main)
