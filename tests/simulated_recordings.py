"""Recordings of jobs that never ran, with times as a real job has them.

Each rank reads its input, computes, and submits its buckets one by one. The
engines run one collective at a time; none begins before its last rank came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hvd_keras._observe.recording import (
    CALL,
    DTYPES,
    KINDS,
    PHASE,
    PHASES,
    STATES,
    STEP,
    RankRecording,
    Recording,
)

MS = 1_000_000
START = 7_000_000 * MS
Time = Callable[[int, int], float]  # of a rank and a step, in ms


def usual_input(rank: int, step: int) -> float:
    return 1.0


def usual_compute(rank: int, step: int) -> float:
    return 40.0


@dataclasses.dataclass
class Job:
    size: int = 2
    ranks_per_host: int = 8
    num_steps: int = 10
    input_ms: Time = usual_input
    reads_in_steps: bool = False  # the input is part of the step
    compute_ms: Time = usual_compute  # up to the last bucket
    update_ms: float = 2
    bucket_bytes: Sequence[int] = (4 << 20, 4 << 20, 2 << 20, 1 << 20)
    tensors_per_bucket: int = 8
    bytes_per_ms: float = 4e6  # 4 GB/s
    start_ms: float = 0.05  # of each collective
    wire_bytes_per_ms: float = 1e6
    clock_error_ns: int = 20_000
    names: Sequence[str] = ()

    def record(self) -> Recording:
        return _Simulation(self).recording()

    def host(self, rank: int) -> str:
        return "abcdefghijklmnopqrstuvwxyz"[
            rank // self.ranks_per_host % 26
        ] + (str(rank // self.ranks_per_host // 26 or ""))


class _Simulation:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.names = list(job.names) or [
            f"gradients/bucket_{i}" for i in range(len(job.bucket_bytes))
        ]
        self.calls = np.zeros(
            (job.size, job.num_steps * len(job.bucket_bytes)), CALL
        )
        self.steps = np.zeros((job.size, job.num_steps), STEP)
        self.several_hosts = job.host(0) != job.host(job.size - 1)

    def recording(self) -> Recording:
        free = np.full(self.job.size, float(START))
        for step in range(self.job.num_steps):
            free = self._step(step, free)
        return Recording(
            [self._rank(r) for r in range(self.job.size)], self.job.size
        )

    def _times(self, of: Time, step: int) -> np.ndarray:
        return np.array([of(rank, step) for rank in range(self.job.size)]) * MS

    def _step(self, step: int, free: np.ndarray) -> np.ndarray:
        job, count = self.job, len(self.job.bucket_bytes)
        begin = free + self._times(job.input_ms, step)
        compute = self._times(job.compute_ms, step)
        engine = 0.0
        for bucket, num_bytes in enumerate(job.bucket_bytes):
            # The second half of the time is the backward pass.
            submitted = begin + compute * (0.5 + 0.5 * (bucket + 1) / count)
            begun = max(submitted.max(), engine) + 0.02 * MS
            speed = (
                job.wire_bytes_per_ms
                if self.several_hosts
                else job.bytes_per_ms
            )
            engine = begun + (job.start_ms + num_bytes / speed) * MS
            row = self.calls[:, step * count + bucket]
            row["enqueued_ns"] = submitted
            row["negotiated_ns"] = submitted.max() + 0.01 * MS
            row["begun_ns"], row["ended_ns"] = begun, engine
            row["number"] = row["collective_id"] = step * count + bucket + 1
            row["name"] = bucket
            row["num_tensors"] = job.tensors_per_bucket
            row["num_bytes"] = num_bytes
        end = engine + job.update_ms * MS
        own = self.steps[:, step]
        own["step"], own["end_ns"] = step, end
        own["begin_ns"] = free if job.reads_in_steps else begin
        return np.full(job.size, end)

    def _rank(self, rank: int) -> RankRecording:
        job, calls = self.job, self.calls[rank]
        calls["kind"] = KINDS.index("allreduce")
        calls["dtype"] = DTYPES.index("float32")
        calls["state"] = STATES.index("done")
        calls["last_rank"] = -1
        is_leader = rank % job.ranks_per_host == 0
        phases = np.zeros(
            len(calls) * (self.several_hosts and is_leader), PHASE
        )
        if len(phases):
            phases["collective_id"] = calls["collective_id"]
            phases["kind"] = PHASES.index("wire")
            phases["begin_ns"] = calls["begun_ns"]
            phases["end_ns"] = calls["ended_ns"]
        return RankRecording(
            rank=rank,
            host=job.host(rank),
            pid=4000 + rank,
            clock_offset_ns=0,
            clock_error_ns=job.clock_error_ns * (rank >= job.ranks_per_host),
            num_dropped=0,
            settings={
                "hvd_keras": "0.1.0",
                "backend": "tensorflow",
                "cores": "32",
                "HVD_FUSION_THRESHOLD": "134217728",
            },
            command="python train.py --epochs 3",
            began_unix_ns=1_795_706_879 * 10**9,
            names=self.names,
            calls=calls,
            phases=phases,
            steps=self.steps[rank],
        )


def slow(rank: int, milliseconds: float, usual: float = 1) -> Time:
    """One rank takes longer than the others."""
    return lambda r, step: milliseconds if r == rank else usual


def jitter(usual: float, spread: float, seed: int = 0) -> Time:
    """Each rank and step takes another time."""
    table = np.random.default_rng(seed).uniform(0, spread, (1024, 256))
    return lambda rank, step: usual + table[rank % 1024, step % 256]
