"""Which rank is on which host, in a job and in a process set."""

from __future__ import annotations

from hvd_keras._job.hosts import layout


def test_hosts_come_in_the_order_of_their_first_ranks() -> None:
    job = layout.layout(["b", "a", "b"], rank=2)
    assert job.ranks == [[0, 2], [1]]
    assert (job.host, job.leaders, job.local_ranks) == (0, [0, 1], [0, 2])
    assert not job.is_homogeneous
    assert layout.layout(["b", "a", "a", "b"], rank=0).is_homogeneous


def test_a_process_set_has_its_own_plan() -> None:
    job = layout.layout(["a", "a", "b", "b"], rank=3)
    found = layout.of_set(job, [0, 2, 3])
    assert found.ranks == [[0], [1, 2]]
    assert (found.host, found.rank, found.job_hosts) == (1, 2, [0, 1])
    without = layout.of_set(job, [0, 1])
    assert (without.host, without.rank, without.num_hosts) == (-1, -1, 1)
