"""Reads the model of a training step at the sizes of clusters.

    python benchmarks/clusters.py --chart=docs/images/scaling.svg

Prints, and draws, the efficiency: the step of one rank over that of N, each
with the same rows. All of it is modelled, but for what Horovod's paper has
published, and for the seconds of negotiation, which `negotiation.cc` measures
with hosts in memory. docs/scaling.md says what goes in. The chart needs
matplotlib.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from _networks import Gradient, gradients_of
from _step_model import (
    Costs,
    buckets_of,
    bytes_of_a_host,
    rounds_of_tree,
    step_seconds,
)
from absl import app, flags

from hvd_keras._values.buckets import BYTES_ON_SEVERAL_HOSTS

FLAGS = flags.FLAGS
flags.DEFINE_string("chart", None, "SVG file.")

RANKS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
READ_AT = [128, 512, 4096]
# Seconds of a step of 64 samples: pictures a second of a P100 are those of
# https://www.tensorflow.org/performance/benchmarks (2017, synthetic data);
# ResNet-101 lies between its neighbours, BERT-base is that of slow-networks.
P100 = {
    "inception_v3": 64 / 142,
    "resnet101": 64 / 130,
    "vgg16": 64 / 154,
    "resnet50": 64 / 219,
    "bert": 0.4,
}
TIMES_AS_FAST = 10  # of a GPU of today with 16 bits; the gradients stay float32
# What Horovod's paper (arXiv:1802.05799) read from its chart of 512 P100.
PUBLISHED = {"inception_v3": 0.90, "resnet101": 0.90, "vgg16": 0.68}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Hosts of one kind."""

    name: str
    ranks_a_host: int
    gbit: float  # that a host can send a second
    share: float  # of it that gradients get
    latency: float  # seconds of a message
    times_as_fast: float  # its GPUs, over a P100


@dataclasses.dataclass(frozen=True)
class Way:
    """How gradients travel."""

    name: str
    bucket_bytes: int
    fuses: bool
    is_ring: bool  # one ring of all ranks, as in 2017; or a tree of hosts


WAYS = [
    Way("fused", BYTES_ON_SEVERAL_HOSTS, True, False),
    Way("not fused", 1, False, False),
    Way("one ring, fused", 1, True, True),
    Way("one ring, not fused", 1, False, True),
]
CLUSTERS = [
    Cluster("25 GbE, 4 P100 a host", 4, 25, 0.9, 30e-6, 1),
    Cluster(
        "100 GbE, 8 GPUs a host, 10 times as fast", 8, 100, 0.9, 20e-6,
        TIMES_AS_FAST,
    ),
    Cluster(
        "400 Gb InfiniBand a GPU, the same GPUs", 8, 8 * 400, 0.9, 5e-6,
        TIMES_AS_FAST,
    ),
]  # fmt: skip


def negotiation(num_ranks: int) -> float:
    """Returns the seconds that rank 0 takes for a round of 160 requests.

    On a line through what `negotiation.cc` measures at 64 and 512 hosts of 8
    ranks (benchmarks/RESULTS.md).
    """
    return float(np.interp(num_ranks, [0, 512, 4096], [0, 0.15e-3, 0.93e-3]))


def efficiency(
    cluster: Cluster,
    gradients: Sequence[Gradient],
    compute: float,
    ranks: int,
    way: Way,
) -> float:
    """Returns the step of one rank over that of all."""
    buckets = buckets_of(gradients, way.bucket_bytes)
    compute /= cluster.times_as_fast
    hosts = max(1, ranks // cluster.ranks_a_host)
    if hosts == 1:
        return 1.0
    rate = cluster.share * cluster.gbit * 1e9 / 8
    sizes = [1.0, 1e9]
    each = cluster.latency * (
        2 * (ranks - 1) if way.is_ring else 2 * rounds_of_tree(hosts)
    )
    costs = Costs(
        sizes, [each + bytes_of_a_host(size, hosts) / rate for size in sizes]
    )
    step = step_seconds(
        buckets,
        compute,
        costs,
        latency=2 * cluster.latency + negotiation(ranks) / 160,
        fuse_within=negotiation(ranks) if way.fuses else 0.0,
    )
    return compute / step


def table() -> dict[tuple[str, str, str], list[float]]:
    """Returns the efficiencies by cluster, network and way, for all RANKS."""
    rows = {}
    for name, compute in P100.items():
        gradients = gradients_of(name)
        for way, cluster in itertools.product(WAYS, CLUSTERS):
            rows[cluster.name, name, way.name] = [
                efficiency(cluster, gradients, compute, ranks, way)
                for ranks in RANKS
            ]
    return rows


_DARK = """
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
[style*="fill: #ffffff"] { fill: #161b22 !important }
[style*="stroke: #000000"] { stroke: #9da7b1 !important }
[style*="stroke: #b0b0b0"] { stroke: #8b949e !important }
}
"""


def add_dark(path: str) -> None:
    """Gives a chart of matplotlib the colours of a dark page, too."""
    chart = pathlib.Path(path)
    text = chart.read_text()
    chart.write_text(text.replace("</style>", f"{_DARK}</style>", 1))


def draw(rows: dict[tuple[str, str, str], list[float]], path: str) -> None:
    """Draws a panel for each cluster."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "scaling", "svg.fonttype": "none"})
    figure, panels = plt.subplots(3, 1, figsize=(7, 9), sharex=True)
    for cluster, panel in zip(CLUSTERS, panels, strict=True):
        for name in P100:
            (line,) = panel.plot(
                RANKS,
                [100 * e for e in rows[cluster.name, name, "fused"]],
                label=name,
            )
            if cluster is not CLUSTERS[0] or name not in PUBLISHED:
                continue
            colour = line.get_color()
            ring = rows[cluster.name, name, "one ring, fused"]
            panel.plot(RANKS, [100 * e for e in ring], "--", color=colour)
            panel.plot([512], [100 * PUBLISHED[name]], "o", color=colour)
        panel.set_title(f"{cluster.name} (lines: modelled)", fontsize=11)
        panel.set_xscale("log", base=2)
        panel.set_xticks(RANKS, list(map(str, RANKS)))
        panel.set_ylim(0, 104)
        panel.set_ylabel("efficiency, %")
        panel.grid(alpha=0.4)
    panels[0].plot([], [], "--", color="grey", label="one ring, as in 2017")
    panels[0].plot([], [], "o", color="grey", label="published, one ring")
    panels[0].legend(fontsize=9, loc="lower left", ncols=2)
    panels[-1].set_xlabel("ranks")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    add_dark(path)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    rows = table()
    columns = "".join(f"{ranks:>8}" for ranks in READ_AT)
    for cluster in CLUSTERS:
        print(f"{cluster.name + ', %':<48}{columns}")
        for name in P100:
            for way in WAYS:
                found = rows[cluster.name, name, way.name]
                figures = (found[RANKS.index(ranks)] for ranks in READ_AT)
                text = "".join(f"{100 * figure:8.0f}" for figure in figures)
                print(f"  {name + ', ' + way.name:<46}{text}")
    if FLAGS.chart:
        draw(rows, FLAGS.chart)


if __name__ == "__main__":
    app.run(main)
