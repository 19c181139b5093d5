"""Which rank is on which host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Layout:
    """The hosts of a job, or of a process set.

    Ranks that cannot share memory count as ranks of different hosts, even on
    one machine. Ranks are those of the set.
    """

    ranks: list[list[int]]  # by host; each host's ascending, rank 0's first
    host: int  # this one; -1: it has no rank of the set
    rank: int  # this one, in the set; -1: it is not in the set
    job_hosts: list[int]  # by host: its index in the job

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.ranks)

    @property
    def local_ranks(self) -> list[int]:
        """The ranks of this host."""
        return self.ranks[self.host]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all hosts have equally many ranks."""
        return len({len(ranks) for ranks in self.ranks}) == 1

    @property
    def leaders(self) -> list[int]:
        """The first rank of each host."""
        return [ranks[0] for ranks in self.ranks]


def layout(hosts: Sequence[str], rank: int) -> Layout:
    """Returns the layout of ranks whose hosts are named by `hosts`, by rank."""
    by_host: dict[str, list[int]] = {}
    for one, host in enumerate(hosts):
        by_host.setdefault(host, []).append(one)
    own = list(by_host).index(hosts[rank])
    return Layout(list(by_host.values()), own, rank, list(range(len(by_host))))


def of_set(job: Layout, ranks: Sequence[int]) -> Layout:
    """Returns the layout of a process set.

    Args:
        job: The layout of the job.
        ranks: The ranks of the set in the job, ascending.
    """
    place = {one: host for host, local in enumerate(job.ranks) for one in local}
    by_host: dict[int, list[int]] = {}
    for index, one in enumerate(ranks):
        by_host.setdefault(place[one], []).append(index)
    hosts = list(by_host)
    return Layout(
        list(by_host.values()),
        hosts.index(job.host) if job.host in by_host else -1,
        list(ranks).index(job.rank) if job.rank in ranks else -1,
        hosts,
    )
