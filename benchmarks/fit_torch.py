"""Times what `fit.py` times, with torch's DistributedDataParallel on Gloo.

    python benchmarks/fit_torch.py --np=2

A loop of plain torch has the same layers, batches and optimizer. Its JSON line
has the fields of that of `fit.py`. Run the two in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from absl import app, flags
from torch import nn

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks.", 1)
flags.DEFINE_integer("batch", 64, "Images a rank has in a batch.", 1)
flags.DEFINE_integer("steps", 60, "Batches in a timed epoch.", 1)
flags.DEFINE_integer("rounds", 8, "Timed epochs of each way.", 1)
flags.DEFINE_integer("port", 29590, "TCP port, on 127.0.0.1.", 1024)

NUM_CLASSES = 10


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    )


def run_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def work() -> None:
    """Runs in a rank."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // FLAGS.np))
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    data = [
        (
            torch.rand(FLAGS.batch, 1, 28, 28, generator=generator),
            torch.randint(NUM_CLASSES, (FLAGS.batch,), generator=generator),
        )
        for _ in range(FLAGS.steps)
    ]
    distributed = nn.parallel.DistributedDataParallel(make_model())
    models = {"one_rank": make_model(), "all_ranks": distributed}
    optimizers = {
        way: torch.optim.Adam(model.parameters(), 1e-3)
        for way, model in models.items()
    }
    rates: dict[str, list[float]] = {way: [] for way in models}
    for round_number in range(FLAGS.rounds + 1):
        for way, model in models.items():
            dist.barrier()
            start = time.perf_counter()
            run_epoch(model, optimizers[way], data)
            seconds = time.perf_counter() - start
            if round_number > 0:
                rates[way].append(FLAGS.batch * FLAGS.steps / seconds)
    everyone: list[dict[str, list[float]]] = [{}] * FLAGS.np
    dist.all_gather_object(everyone, rates)
    if dist.get_rank() > 0:
        return
    alone = np.mean([rank["one_rank"] for rank in everyone], axis=0)
    together = np.min([rank["all_ranks"] for rank in everyone], axis=0)
    figures = {
        "ranks": FLAGS.np,
        "batch": FLAGS.batch,
        "one_rank": round(float(np.median(alone)), 1),
        "all_ranks": round(float(np.median(together)) * FLAGS.np, 1),
        "efficiency": round(float(np.median(together / alone)), 3),
        "rounds": [round(float(r), 3) for r in together / alone],
    }
    print(json.dumps(figures))


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    if "RANK" in os.environ:
        work()
        return
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(FLAGS.np),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(FLAGS.port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(FLAGS.np)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    app.run(main)
