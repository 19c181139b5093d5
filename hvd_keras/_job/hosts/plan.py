"""Which rank is on which host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Plan:
    """The hosts of a job, or of a process set.

    Ranks that cannot share memory count as ranks of different hosts, even on
    one machine. Ranks are those of the set.
    """

    ranks: list[list[int]]  # by host; each host's ascending, rank 0's first
    host: int  # of this rank

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.ranks)

    @property
    def local_ranks(self) -> list[int]:
        """The ranks of this host."""
        return self.ranks[self.host]

    @property
    def leaders(self) -> list[int]:
        """The first rank of each host."""
        return [ranks[0] for ranks in self.ranks]


def plan(hosts: Sequence[str], rank: int) -> Plan:
    """Returns the plan of ranks whose hosts are named by `hosts`, by rank."""
    by_host: dict[str, list[int]] = {}
    for one, host in enumerate(hosts):
        by_host.setdefault(host, []).append(one)
    return Plan(list(by_host.values()), list(by_host).index(hosts[rank]))


def of_set(job: Plan, ranks: Sequence[int], rank: int) -> Plan:
    """Returns the plan of a process set.

    Args:
        job: The plan of the job.
        ranks: The ranks of the set in the job, ascending.
        rank: This rank in the job; it is in the set.
    """
    place: Mapping[int, int] = {
        one: host for host, local in enumerate(job.ranks) for one in local
    }
    return plan([str(place[one]) for one in ranks], list(ranks).index(rank))
