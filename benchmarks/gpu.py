"""Compares collectives on GPUs with NCCL alone.

    hvdrun -np 8 -- python benchmarks/gpu.py
    hvdrun -np 2 -- python benchmarks/gpu.py

Ranks may share one GPU. They are slower then, with NCCL before 2.30 a lot.

It needs PyTorch or CuPy for memory, and PyTorch for the overlap. Rank 0 prints
a JSON line for each measurement. Times are medians, in us, of the slowest rank:

- `allreduce`: one tensor of each size. `bare_us` is ncclAllReduce on a stream
  and a wait for it, `blocking_us` the same with a communicator that blocks,
  `ours_us` our call and a wait for its end.
- `gradients`: the 161 of ResNet-50 at once, in buckets as in training.
  `bare_us` is a copy of as many bytes, one ncclAllReduce of them, and a copy.
  `host_us` is the time that the submitting thread spends.
- `overlap`: a series of matrix products, the gradients, and both at once.
  `hidden` is the share of the shorter one that hides behind the other.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import _common
import numpy as np
from _bare_nccl import BareNccl

import hvd_keras as hvd
from hvd_keras import _core

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
devices: Any = importlib.import_module("devices")

SUM = 1  # hvd.Sum
BUCKET_BYTES = 8 << 20


def _gradient_sizes() -> list[int]:
    path = pathlib.Path(__file__).with_name("resnet50_shapes.json")
    shapes = json.loads(path.read_text())["conv_without_bias"]
    return [math.prod(shape) for shape in shapes]


class Bench:
    """Times calls on the GPU of this rank."""

    def __init__(self, device: Any, calls: int) -> None:
        self.device = device
        self.calls = calls
        self.bare = BareNccl(device.ordinal, blocks=False)
        self.blocking = BareNccl(device.ordinal, blocks=True)

    def time_us(self, call: Callable[[], object]) -> float:
        """Returns the median time of `call` on the slowest rank."""
        for _ in range(3):
            call()
        times = []
        for _ in range(self.calls):
            _common.wait_for_all()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        rows = _common.gather_over_ranks([statistics.median(times)])
        return float(rows.max()) * 1e6

    def buffers(self, sizes: list[int]) -> list[Any]:
        """Returns buffers of these numbers of float32, all zeros."""
        made = [self.device.allocate(4 * size) for size in sizes]
        for buffer in made:
            self.device.write(buffer, np.zeros(buffer.num_bytes, np.uint8))
            self.device.read(buffer)
        return made

    def described(self, groups: list[list[Any]]) -> list[list[Any]]:
        """Returns groups of buffers as arguments of a call in place."""
        return [
            [(b.address, b.address, "float32", [b.num_bytes // 4]) for b in g]
            for g in groups
        ]

    def submit(self, groups: list[list[Any]]) -> list[Any]:
        """Starts an allreduce of each `described` group."""
        return [
            _core.gpu_submit(
                "allreduce",
                f"bench.{i}",
                group,
                self.device.ordinal,
                self.device.stream,
                op=SUM,
            )
            for i, group in enumerate(groups)
        ]

    def reduce(self, groups: list[list[Any]]) -> None:
        """Allreduces each `described` group, and waits."""
        for call in self.submit(groups):
            call.wait()

    def blocking_reduce(self, buffer: Any) -> None:
        """Allreduces `buffer` with a communicator of NCCL that blocks."""
        address, num_bytes = buffer.address, buffer.num_bytes
        self.blocking.allreduce(address, address, num_bytes // 4)
        self.blocking.synchronize()

    def bare_reduce(self, buffer: Any, scratch: Any) -> None:
        """Allreduces `buffer` with NCCL alone, by way of `scratch` if given."""
        target = buffer if scratch is None else scratch
        if scratch is not None:
            self.bare.copy(target.address, buffer.address, buffer.num_bytes)
        num_elements = buffer.num_bytes // 4
        self.bare.allreduce(target.address, target.address, num_elements)
        if scratch is not None:
            self.bare.copy(buffer.address, target.address, buffer.num_bytes)
        self.bare.synchronize()


def _print(**values: object) -> None:
    if hvd.rank() == 0:
        print(json.dumps(values), flush=True)


def allreduces(bench: Bench, max_bytes: int) -> None:
    """Times one tensor of each size."""
    num_bytes = 1024
    while num_bytes <= max_bytes:
        (buffer,) = bench.buffers([num_bytes // 4])
        bare = functools.partial(bench.bare_reduce, buffer, None)
        ours = functools.partial(bench.reduce, bench.described([[buffer]]))
        bare_us = bench.time_us(bare)
        blocking = functools.partial(bench.blocking_reduce, buffer)
        blocking_us = bench.time_us(blocking)
        ours_us = bench.time_us(ours)
        _print(
            what="allreduce", num_bytes=num_bytes, bare_us=round(bare_us, 1),
            blocking_us=round(blocking_us, 1), ours_us=round(ours_us, 1),
            ratio=round(ours_us / bare_us, 3),
        )  # fmt: skip
        num_bytes *= 8


def _buckets(buffers: list[Any]) -> list[list[Any]]:
    """Makes buckets of 8 MiB, last buffers first: as in training."""
    buckets: list[list[Any]] = [[]]
    room = BUCKET_BYTES
    for buffer in reversed(buffers):
        if buckets[-1] and buffer.num_bytes > room:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(buffer)
        room -= buffer.num_bytes
    return buckets


def gradients(bench: Bench) -> tuple[list[list[Any]], list[Any]]:
    """Times those of ResNet-50; returns them, described, and their buffers."""
    sizes = _gradient_sizes()
    buffers = bench.buffers(sizes)
    buckets = bench.described(_buckets(buffers))
    whole, scratch = bench.buffers([sum(sizes)] * 2)
    bare_us = bench.time_us(lambda: bench.bare_reduce(whole, scratch))
    host_times = []

    def step() -> None:
        begin = time.perf_counter()
        calls = bench.submit(buckets)
        host_times.append(time.perf_counter() - begin)
        for call in calls:
            call.wait()

    ours_us = bench.time_us(step)
    host_us = statistics.median(host_times) * 1e6
    _print(
        what="gradients", num_bytes=4 * sum(sizes), bare_us=round(bare_us, 1),
        ours_us=round(ours_us, 1), ratio=round(ours_us / bare_us, 3),
        host_us=round(host_us, 1),
    )  # fmt: skip
    return buckets, buffers


def overlap(bench: Bench, buckets: list[list[Any]]) -> None:
    """Times the gradients beside matrix products, which take PyTorch."""
    import torch

    matrix = torch.zeros((4096, 4096), device=f"cuda:{bench.device.ordinal}")

    def compute() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix)

    def products() -> None:
        compute()
        torch.cuda.synchronize(bench.device.ordinal)

    def both() -> None:
        compute()
        bench.reduce(buckets)
        torch.cuda.synchronize(bench.device.ordinal)

    products_us = bench.time_us(products)
    reduce_us = bench.time_us(lambda: bench.reduce(buckets))
    both_us = bench.time_us(both)
    saved = products_us + reduce_us - both_us
    _print(
        what="overlap", products_us=round(products_us, 1),
        gradients_us=round(reduce_us, 1), both_us=round(both_us, 1),
        hidden=round(saved / min(products_us, reduce_us), 3),
    )  # fmt: skip


def main() -> None:
    """Runs all measurements on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--max-bytes", type=int, default=1 << 30)
    options = parser.parse_args()
    devices.prepare_to_share(os.environ)
    _common.start(1)
    device = devices.open_device(hvd.local_rank())
    if device is None:
        sys.exit("benchmarks/gpu.py needs a GPU, and PyTorch or CuPy")
    if hvd.rank() == 0:
        cuda, nccl = _core.gpu_cuda_version(), _core.gpu_nccl_version()
        print(f"{hvd.size()} ranks, CUDA {cuda}, NCCL {nccl}", flush=True)
    bench = Bench(device, options.calls)
    allreduces(bench, options.max_bytes)
    buckets, kept = gradients(bench)
    if type(device).__name__ == "TorchDevice":
        overlap(bench, buckets)
    del kept
    hvd.shutdown()


if __name__ == "__main__":
    main()
