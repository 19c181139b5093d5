"""Times the rendezvous of a job, without processes and sockets.

    python benchmarks/rendezvous.py --ranks=4096

One process plays all: the server that decides, and the ranks that ask to join,
bring a value of --bytes and hear those of all. `ms` is what the server takes
for a round, the median; `mib` is what it would send.
"""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Sequence

import _results
import numpy as np
from absl import app, flags

from hvd_keras._rendezvous.fixed_generations import FixedGenerations

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests"))
from virtual_members import bring, come

FLAGS = flags.FLAGS
flags.DEFINE_multi_integer("ranks", [64, 512, 4096], "Ranks.")
flags.DEFINE_integer("bytes", 64, "Bytes that a rank brings.", 1)
flags.DEFINE_integer("rounds", 5, "Jobs of each size.", 1)


def time_round(num_ranks: int) -> tuple[float, float]:
    """Returns seconds and MiB of a round in which all come and exchange."""
    generations = FixedGenerations(num_ranks)
    for rank in range(num_ranks):
        generations.rank_started(rank)
    start = time.perf_counter()
    peers = [come(generations, r, size=num_ranks) for r in range(num_ranks)]
    for peer in peers:
        assert bring(generations, peer, b"v" * FLAGS.bytes)
    seconds = time.perf_counter() - start
    return seconds, sum(len(peer.unsent) for peer in peers) / 2**20


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    print(f"{'ranks':>6} {'ms':>9} {'mib':>9}")
    for num_ranks in FLAGS.ranks:
        rounds = [time_round(num_ranks) for _ in range(FLAGS.rounds)]
        seconds = [seconds for seconds, _ in rounds]
        print(
            f"{num_ranks:6} {1e3 * np.median(seconds):9.2f} {rounds[0][1]:9.1f}"
        )
        _results.write(
            "rendezvous",
            num_ranks,
            [_results.figure("a round", "ours", seconds)],
        )


if __name__ == "__main__":
    app.run(main)
