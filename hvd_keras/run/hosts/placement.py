"""Which hosts a job runs on, how they are reached, and which ranks they get."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from hvd_keras._rendezvous import interfaces, launchers, slurm
from hvd_keras.run.ranks.environment import Place
from hvd_keras.run.usage import UsageError

_HOSTFILE_LINE = re.compile(
    r"(?P<name>[^\s:\[]+|\[[^\]]+\])"
    r"(?::(?P<mpich>\d+))?"
    r"(?:\s+(?:slots|max[-_]slots)\s*=\s*\d+|\s+\w+\s*=\s*\S+)*\s*"
)
MAX_SLOTS = 1 << 16
_MAX_FILE = 1 << 20  # characters of a hostfile
_MOST_SHOWN = 100  # of a bad line
_SLOTS = re.compile(r"(?<![-\w])slots\s*=\s*(\d+)")


@dataclasses.dataclass(frozen=True)
class PlannedHost:
    """A host, and how many ranks it has room for."""

    name: str
    slots: int | None  # None: its own hvdrun says it
    is_local: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The hosts of a job, in the order of their ranks."""

    # "provider": another system reaches all hosts, this one as well, which have
    # their own environment and directory; "hosts": each runs hvdrun.
    way: Literal["local", "ssh", "provider", "slurm", "hosts"]
    hosts: tuple[PlannedHost, ...]
    num_ranks: int | None  # None: as many as there are slots
    may_grow: bool = False  # more hosts may come, and hosts may leave
    min_hosts: int = 1  # if it may grow: how many must be there to begin

    @property
    def is_of_one_host(self) -> bool:
        """Whether this process starts all ranks by itself."""
        return not self.may_grow and all(host.is_local for host in self.hosts)

    def without_idle_hosts(self) -> Plan:
        """Returns this plan without the hosts that would get no rank.

        Raises:
            UsageError: There are fewer slots than ranks.
        """
        places = self.places([host.slots or 0 for host in self.hosts])
        return dataclasses.replace(self, hosts=self.hosts[: len(places)])

    def places(self, slots: Sequence[int]) -> list[Place]:
        """Returns the ranks of each host, which are dealt host by host.

        Args:
            slots: How many ranks each host has room for.

        Raises:
            UsageError: There are fewer slots than ranks.
        """
        size = sum(slots) if self.num_ranks is None else self.num_ranks
        if size > sum(slots):
            names = ", ".join(
                f"{host.name}:{number}" + " (this host)" * host.is_local
                for host, number in zip(self.hosts, slots, strict=True)
            )
            raise UsageError(
                "`-np` must not exceed the slots of the hosts. Received: "
                f"-np {size} for {names}. Start fewer ranks, or give the "
                "hosts more slots: `-H HOST:SLOTS`, as many as it has cores."
            )
        found, first = [], 0
        for number in slots:
            num_ranks = min(number, size - first)
            found.append((first, num_ranks))
            first += num_ranks
        used = [part for part in found if part[1] > 0]
        return [
            Place(first, num_ranks, size, cross_rank, len(used))
            for cross_rank, (first, num_ranks) in enumerate(used)
        ]


def of_this_host(num_ranks: int) -> Plan:
    """Returns the plan of a job on this host alone."""
    here = PlannedHost(interfaces.host_name(), num_ranks, is_local=True)
    return Plan("local", (here,), num_ranks)


def parse_hosts(text: str) -> list[tuple[str, int | None]]:
    """Returns names and slots in a list such as `a:4,b:4`.

    Raises:
        UsageError: It is malformed.
    """
    return [_parse_host(part.strip(), text) for part in text.split(",")]


def read_hostfile(path: str) -> list[tuple[str, int | None]]:
    """Returns the names and slots in a file of Horovod, Open MPI or MPICH.

    A line is `host`, `host slots=4` or `host:4`; what follows `#` is a comment.

    Raises:
        UsageError: It cannot be read, or is malformed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
        if len(text) > _MAX_FILE:
            raise ValueError(f"more than {_MAX_FILE:,} characters")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"`--hostfile` must be a text file. Received: {path!r}: {error}."
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.split("\n")]
    hosts = []
    for number, line in enumerate(lines, start=1):
        match = _HOSTFILE_LINE.fullmatch(line)
        if match is not None:
            slots = _SLOTS.search(line)
            text = slots[1] if slots else match["mpich"]
            where = f"line {number} of {path!r}"
            hosts.append(_host(match["name"], text, where))
        elif line:
            raise UsageError(
                "`--hostfile` must have lines such as `host slots=4` or "
                f"`host:4`. Received: {line[:_MOST_SHOWN]!r} in line {number} "
                f"of {path!r}."
            )
    if not hosts:
        raise UsageError(
            f"`--hostfile` must name hosts. Received: none in {path!r}."
        )
    return hosts


def of_hosts(
    hosts: Sequence[tuple[str, int | None]], num_ranks: int | None
) -> Plan:
    """Returns the plan of a job on hosts that are reached over ssh.

    Args:
        hosts: Names and slots; None is one slot. A host may come twice.
        num_ranks: Number of ranks; None fills all slots.
    """
    slots: dict[str, int] = {}
    here = ""
    for name, number in hosts:
        if interfaces.is_this_host(name):
            here = here or name
            name = here
        slots[name] = slots.get(name, 0) + (1 if number is None else number)
    if set(slots) == {here} and num_ranks is not None:
        has_room = any(number is None for _, number in hosts)
        if has_room or num_ranks <= slots[here]:
            return of_this_host(num_ranks)
    planned = [
        PlannedHost(_shown(name), number, is_local=name == here)
        for name, number in slots.items()
        if number > 0
    ]
    return Plan("ssh", tuple(planned), num_ranks)


def of_provider(hosts: Mapping[str, int], num_ranks: int | None) -> Plan:
    """Returns the plan of a job on hosts that another system provides.

    Args:
        hosts: Names and slots; the names are those that the system knows.
        num_ranks: See `Plan`.
    """
    planned = tuple(PlannedHost(name, slots) for name, slots in hosts.items())
    return Plan("provider", planned, num_ranks, may_grow=True)


def of_slurm(environ: Mapping[str, str], num_ranks: int | None) -> Plan | None:
    """Returns the plan of a job in this allocation of Slurm.

    None: this is no allocation of several hosts, or srun has put this process
    on one of them.
    """
    if launchers.is_in_slurm_step(environ):
        return None
    hosts = slurm.hosts(environ.get("SLURM_JOB_NODELIST", ""))
    if len(hosts) < 2 or not environ.get("SLURM_JOB_ID"):
        return None
    slots = slurm.tasks_per_host(environ.get("SLURM_TASKS_PER_NODE", ""))
    if num_ranks is None:
        if not environ.get("SLURM_NTASKS", "").isdigit():
            return None
        num_ranks = int(environ["SLURM_NTASKS"])
    if len(slots) != len(hosts) or sum(slots) < num_ranks:
        # The allocation counts otherwise: deal the ranks evenly.
        slots = [-(-num_ranks // len(hosts))] * len(hosts)
    planned = map(PlannedHost, hosts, slots)
    return Plan("slurm", tuple(planned), num_ranks)


def of_num_hosts(num_hosts: int, num_ranks_here: int) -> Plan:
    """Returns the plan of a job whose hosts each run hvdrun, this one first."""
    here = PlannedHost(interfaces.host_name(), num_ranks_here, is_local=True)
    others = [PlannedHost(f"host {i}", None) for i in range(1, num_hosts)]
    return Plan("hosts", (here, *others), None)


def span(ranks: Sequence[int]) -> str:
    """Returns the first and the last of some ranks, for messages."""
    first, last = ranks[0], ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _shown(name: str) -> str:
    """Returns a better name of this host, if `name` says only that it is."""
    return (
        interfaces.host_name() if name in ("localhost", "127.0.0.1") else name
    )


def _parse_host(part: str, text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d+))?", part)
    if match is None:
        raise UsageError(
            "`-H` must be hosts and slots such as a:4,b:4. Received: "
            f"{text[:_MOST_SHOWN]!r}."
        )
    return _host(match[1], match[2], "`-H`")


def _host(name: str, slots: str | None, where: str) -> tuple[str, int | None]:
    name = name.strip("[]")
    if not name.isprintable():
        raise UsageError(
            "The name of a host must have printable characters. Received: "
            f"{name[:_MOST_SHOWN]!r} in {where}."
        )
    # Python converts no text of thousands of digits.
    if slots and (len(slots) > 9 or int(slots) > MAX_SLOTS):
        raise UsageError(
            f"A host must have {MAX_SLOTS} slots at most. Received: "
            f"{slots[:_MOST_SHOWN]} for {name[:_MOST_SHOWN]!r} in {where}."
        )
    return name, int(slots) if slots else None
