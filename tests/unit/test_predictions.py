"""What a step would take with less on the network, beside what it then takes.

The jobs are simulated: one with all bytes, one with what a cure leaves.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from simulated_recordings import Job

from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.predictions import network_of
from hvd_keras._observe.recording import PHASES

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


def test_few_bytes_save_little_where_the_processor_is_the_limit() -> None:
    """A wire works 2.7 times as long as its rank, and 0.6 of that if packed."""
    recording = Job(size=2, ranks_per_host=1).record()
    link = network_of(analyze(recording))
    assert link is not None
    assert link.work_ns == 0
    for one in recording.ranks:
        copies = one.phases.copy()
        copies["kind"] = PHASES.index("copy")
        one.phases = np.concatenate([one.phases, copies])
    busy = network_of(analyze(recording))
    assert busy is not None
    assert busy.work_ns == busy.wire_ns
    assert busy.packed("int4") == pytest.approx(
        busy.step_ns - min(0.4 * busy.wire_ns, busy.exposed_ns)
    )
    assert busy.packed("int4") > link.packed("int4")
    assert busy.local() == link.local()


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
