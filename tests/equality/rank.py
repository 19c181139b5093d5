"""Runs cases on one process of a job, and notes the differences.

Usage: python -m equality.rank SIDE FILE [CASE ...]

SIDE is `ours`, `by_keras` or `by_ddp`. Rank 0 appends one line of JSON for each
case to FILE.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from equality import cases
from equality.difference import difference
from equality.fits import Trained


class Ours:
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def gather(self, mine: Any) -> list[Any]:
        gathered: list[Any] = hvd.allgather_object(mine)
        return gathered

    def end(self) -> None:
        hvd.shutdown()


class ByKeras:
    """One process, with one device of JAX for each rank."""

    def __init__(self) -> None:
        import jax

        self.rank, self.size = 0, len(jax.devices())

    def gather(self, mine: Any) -> list[Any]:
        return [mine]

    def end(self) -> None:
        pass


class ByDdp:
    def __init__(self) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo",
            init_method=os.environ["DDP_MEETS_AT"],
            rank=int(os.environ["HVD_RANK"]),
            world_size=int(os.environ["HVD_SIZE"]),
        )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, mine: Any) -> list[Any]:
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return gathered

    def end(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


SIDES = {"ours": Ours, "by_keras": ByKeras, "by_ddp": ByDdp}


def run(name: str, side: str, job: Any) -> dict[str, Any]:
    """Returns the difference of a case, or the first line of its error."""
    entry: dict[str, Any] = {"case": name, "ranks": job.size, "side": side}
    entry["backend"] = keras.backend.backend()
    case = cases.ALL[name]
    try:
        mine = cases.trainer(case, side)()
        error = None
    except Exception as exception:
        mine = None
        error = f"{type(exception).__name__}: {exception}".splitlines()[0]
    results = job.gather((error, mine and mine.weights, mine and mine.logs))
    errors = [error for error, _, _ in results if error]
    if errors:
        return {**entry, "error": errors[0]}
    if job.rank:
        return entry
    expected = case.alone()
    worst = max(
        (*difference(Trained(weights, logs), expected), rank)
        for rank, (_, weights, logs) in enumerate(results)
    )
    entry["equal_ranks"] = all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for _, weights, _ in results[1:]
        for a, b in zip(weights, results[0][1], strict=True)
    )
    return {**entry, "difference": worst[0], "of": worst[1]}


def main() -> None:
    side, path, *names = sys.argv[1:]
    job = SIDES[side]()
    for name in names:
        entry = run(name, side, job)
        if job.rank == 0:
            print(entry, flush=True)
            with open(path, "a") as file:
                file.write(json.dumps(entry) + "\n")
    job.end()


if __name__ == "__main__":
    main()
