"""What a step would take with less on the network, beside what it then takes.

The jobs are simulated: one with all bytes, one with what a cure leaves.
"""

from __future__ import annotations

import dataclasses

import pytest
from simulated_recordings import Job

from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.predictions import network_of

MANY = dataclasses.replace(
    Job(size=4, ranks_per_host=2, num_steps=40), bucket_bytes=[1 << 20] * 12
)
PACKED = {"int8": 132 / 512, "int4": 36 / 256}


def step_of(job: Job) -> float:
    """Returns the mean step in ns."""
    return float(analyze(job.record()).mean_parts_ns.sum(1).mean())


@pytest.mark.parametrize("compression", ["int8", "int4"])
@pytest.mark.parametrize("mbit", [100, 1000, 4000])
@pytest.mark.parametrize(
    "job", [Job(**vars(MANY)), Job(size=4, ranks_per_host=2)]
)
def test_a_packed_step_is_known_before(
    job: Job, mbit: int, compression: str
) -> None:
    job = dataclasses.replace(job, wire_bytes_per_ms=mbit / 8e3 * 1e6)
    network = network_of(analyze(job.record()))
    assert network is not None
    few = [size * PACKED[compression] for size in job.bucket_bytes]
    then = step_of(dataclasses.replace(job, bucket_bytes=few))
    assert network.packed(compression) == pytest.approx(then, rel=0.05)


@pytest.mark.parametrize("mbit", [100, 1000, 10_000])
def test_local_updates_pay_once_in_so_many_steps(mbit: int) -> None:
    job = Job(size=4, ranks_per_host=2, wire_bytes_per_ms=mbit / 8e3 * 1e6)
    network = network_of(analyze(job.record()))
    assert network is not None
    alone = step_of(dataclasses.replace(job, bucket_bytes=[0]))
    average = sum(job.bucket_bytes) / job.wire_bytes_per_ms * 1e6 / 20
    assert network.local(20) == pytest.approx(alone + average, rel=0.05)


def test_one_host_has_no_network() -> None:
    assert network_of(analyze(Job(size=2).record())) is None
