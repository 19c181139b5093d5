"""Times loops of plain torch: this package's optimizer, DDP on Gloo, alone.

    python benchmarks/fit_torch.py --np=2

The layers, batches and optimizer are those of `fit.py`, or with
`--model=digits` the layers of `examples/torch_loop.py`. In one job, epochs take
turns: without any reduction, by `hvd_keras.torch.DistributedOptimizer`, and by
torch's DistributedDataParallel. The JSON line has images/s of each way, the
median over the rounds, and `ratio`: the seconds of this package by those of
DDP, the median over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from absl import app, flags
from torch import nn

import hvd_keras.torch as hvd

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks.", 1)
flags.DEFINE_enum("model", "cnn", ["cnn", "digits"], "Which layers.")
flags.DEFINE_integer("batch", 64, "Images a rank has in a batch.", 1)
flags.DEFINE_integer("steps", 60, "Batches in a timed epoch.", 1)
flags.DEFINE_integer("rounds", 8, "Timed epochs of each way.", 1)
flags.DEFINE_integer("port", 29590, "TCP port, on 127.0.0.1.", 1024)

NUM_CLASSES = 10
SHAPES = {"cnn": (1, 28, 28), "digits": (64,)}  # of an image


def make_model() -> nn.Module:
    torch.manual_seed(0)
    if FLAGS.model == "digits":
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, NUM_CLASSES)
        )
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
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // FLAGS.np))
    dist.init_process_group("gloo", rank=hvd.rank(), world_size=hvd.size())
    generator = torch.Generator().manual_seed(hvd.rank())
    data = [
        (
            torch.rand(FLAGS.batch, *SHAPES[FLAGS.model], generator=generator),
            torch.randint(NUM_CLASSES, (FLAGS.batch,), generator=generator),
        )
        for _ in range(FLAGS.steps)
    ]
    models = {way: make_model() for way in ("alone", "hvd_keras", "ddp")}
    models["ddp"] = nn.parallel.DistributedDataParallel(models["ddp"])
    optimizers = {
        way: torch.optim.Adam(model.parameters(), 1e-3)
        for way, model in models.items()
    }
    optimizers["hvd_keras"] = hvd.DistributedOptimizer(
        optimizers["hvd_keras"], models["hvd_keras"].named_parameters()
    )
    seconds: dict[str, list[float]] = {way: [] for way in models}
    for _ in range(FLAGS.rounds + 1):
        for way, model in models.items():
            hvd.barrier()
            start = time.perf_counter()
            run_epoch(model, optimizers[way], data)
            hvd.barrier()
            seconds[way].append(time.perf_counter() - start)
    for ours, theirs in zip(
        models["hvd_keras"].parameters(),
        models["ddp"].parameters(),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.01)
    if hvd.rank() > 0:
        return
    ratios = [
        ours / theirs
        for ours, theirs in zip(
            seconds["hvd_keras"][1:], seconds["ddp"][1:], strict=True
        )
    ]
    num_images = FLAGS.batch * FLAGS.steps * FLAGS.np
    figures = {
        "ranks": FLAGS.np,
        "batch": FLAGS.batch,
        **{
            way: round(num_images / statistics.median(times[1:]), 1)
            for way, times in seconds.items()
        },
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    print(json.dumps(figures))


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    if "HVD_RANK" in os.environ:
        work()
        return
    launch = [sys.executable, "-m", "hvd_keras.run", "-np", str(FLAGS.np)]
    of_ddp = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(FLAGS.port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    subprocess.run(
        [*launch, sys.executable, *sys.argv],
        env=os.environ | of_ddp,
        check=True,
    )


if __name__ == "__main__":
    app.run(main)
