"""Compares a model of a training step over hosts with measured steps.

    sudo python benchmarks/scaling.py --json=build/scaling.jsonl

The hosts are network namespaces of this machine, see `hosts.py`, with --np
ranks each. Computing is waiting, as that of a GPU is for the processor; how
long, is that of a known GPU. Gradients are ready when the backward pass of the
network has them.

A job first times reductions of one tensor, of several sizes: that is all that
the model knows of hosts and link. Then come the steps of networks, in buckets
as `DistributedOptimizer` makes them, and without fusion: each gradient by
itself. `ratio` is the predicted step over the measured one, the median.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import _results
import numpy as np
from _host_jobs import HERE, Network, json_lines, run
from _networks import NAMES, gradients_of
from _step_model import Bucket, Costs, buckets_of, step_seconds
from absl import app, flags

from hvd_keras._values.buckets import BYTES_ON_SEVERAL_HOSTS

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 1, "Ranks of a host.", 1)
flags.DEFINE_multi_integer("hosts", [2, 4], "Numbers of hosts.")
flags.DEFINE_multi_float("gbit", [0.1, 1, 10], "What a host may send.")
flags.DEFINE_multi_enum(
    "network", ["cnn", "resnet50", "vgg16", "bert"], NAMES, "Networks."
)
flags.DEFINE_integer("rounds", 3, "Jobs of each kind, in turns.", 1)

# Seconds of a step without a network: assumed, about those of a P100.
COMPUTE = {
    "cnn": 0.12,
    "resnet50": 0.3,
    "resnet101": 0.5,
    "inception_v3": 0.45,
    "vgg16": 0.45,
    "bert": 0.4,
}
SIZES = [1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 16 << 20]
LARGEST = 128 << 20  # takes seconds on slow links
LONGEST_STEP = 20.0


@dataclasses.dataclass(frozen=True)
class Way:
    """How gradients travel."""

    name: str
    bucket_bytes: int
    settings: dict[str, str]
    fuse_within: float


WAYS = [
    Way("fused", BYTES_ON_SEVERAL_HOSTS, {}, 1e-3),
    Way("not fused", 1, {"HVD_FUSION_THRESHOLD": "0"}, 0.0),
]


def sizes_at(gbit: float) -> list[int]:
    """Returns the sizes of the reductions that are timed."""
    return SIZES + [LARGEST] * (gbit >= 10)


def measure(
    network: Network, gbit: float, way: Way, networks: dict[str, list[Bucket]]
) -> dict[str, Any]:
    """Returns what rank 0 of a job prints."""
    steps = []
    for name, buckets in networks.items():
        wire = 8e-9 * sum(b.num_bytes for b in buckets) / gbit
        number = int(np.clip(6 / max(wire, COMPUTE[name]), 1, 20))
        steps.append(
            {
                "name": name,
                "compute": COMPUTE[name],
                "buckets": buckets,
                "number": number,
            }
        )
    plan = {
        # What is fused cannot be told apart.
        "sizes": [] if way.fuse_within else sizes_at(gbit),
        "calls": 5 if gbit >= 1 else 2,
        "steps": steps,
    }
    path = network.folder / "plan.json"
    path.write_text(json.dumps(plan))
    text = run(
        network,
        FLAGS.np,
        str(HERE / "_scaling_rank.py"),
        str(path),
        settings=way.settings,
    )
    (line,) = json_lines(text)
    return line


def compare(network: Network, gbit: float) -> None:
    """Prints a line for each network and way."""
    all_gradients = {name: gradients_of(name) for name in FLAGS.network}
    all_gradients = {
        name: gradients
        for name, gradients in all_gradients.items()
        if 8e-9 * sum(g.num_bytes for g in gradients) / gbit < LONGEST_STEP
    }
    buckets = {
        way.name: {
            name: buckets_of(gradients, way.bucket_bytes)
            for name, gradients in all_gradients.items()
        }
        for way in WAYS
    }
    sizes = sizes_at(gbit)
    costs: list[list[float]] = [[] for _ in sizes]
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(FLAGS.rounds):
        for way in WAYS:
            line = measure(network, gbit, way, buckets[way.name])
            for i, times in enumerate(line["costs"]):
                costs[i] += times
            for name, times in zip(all_gradients, line["steps"], strict=True):
                seconds.setdefault((name, way.name), []).extend(times)
    model = Costs(sizes, [float(np.median(times)) for times in costs])
    print(f"{network.num_hosts} hosts, {gbit:g} Gbit/s: ms by KiB", end=" ")
    print(
        ", ".join(
            f"{size >> 10}: {1e3 * cost:.3f}"
            for size, cost in zip(sizes, model.seconds, strict=True)
        ),
        flush=True,
    )
    figures = []
    for way in WAYS:
        for name in all_gradients:
            measured = float(np.median(seconds[name, way.name]))
            predicted = step_seconds(
                buckets[way.name][name],
                COMPUTE[name],
                model,
                fuse_within=way.fuse_within,
            )
            print(
                f"{name:>12} {way.name:>10} {1e3 * measured:9.1f} ms, "
                f"predicted {1e3 * predicted:9.1f}, ratio "
                f"{predicted / measured:.2f}",
                flush=True,
            )
            figures.append(
                {
                    **_results.figure(
                        f"{name}, {gbit:g} Gbit/s",
                        way.name,
                        seconds[name, way.name],
                    ),
                    "hosts": network.num_hosts,
                    "predicted_ms": 1e3 * predicted,
                }
            )
    _results.write("scaling", network.num_hosts * FLAGS.np, figures)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    for num_hosts in FLAGS.hosts:
        with tempfile.TemporaryDirectory(prefix="hvd-scaling-") as folder:
            network = Network(pathlib.Path(folder), num_hosts)
            try:
                for gbit in FLAGS.gbit:
                    with network.shaped(f"{gbit:g}gbit"):
                        compare(network, gbit)
            finally:
                network.close()


if __name__ == "__main__":
    app.run(main)
