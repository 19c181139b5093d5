"""Finds out from the environment which rank of which job this process is."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

from hvd_keras._rendezvous import addresses, launchers
from hvd_keras._rendezvous.launchers import FAMILIES, Family
from hvd_keras.config import read_setting
from hvd_keras.exceptions import LaunchError

HVDRUN = "hvdrun"
# Below the ports that the system gives to connections.
_FIRST_PORT = 20000
_NUM_PORTS = 12000


@dataclasses.dataclass(frozen=True)
class Topology:
    """The place of this process in its job.

    If the launcher tells a rank neither its host's index nor how many hosts
    there are, they are those of ranks that are dealt to the hosts evenly.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    launcher: str = "no launcher"
    job_identity: str = ""  # equal in all processes of the job; "": unknown
    rendezvous: str = ""  # TCP address of rank 0 for other hosts; "": unknown
    member: int | None = None  # in an elastic job, whose server gives the place


def detect(environ: Mapping[str, str]) -> Topology:
    """Reads the place of this process from a launcher's variables.

    hvdrun sets all of `HVD_*` and `HVD_RENDEZVOUS`. If they are there, nothing
    else counts. Another launcher that sets them all sets `HVD_LAUNCHER`, too.
    In an elastic job hvdrun sets `HVD_MEMBER` instead, and `init()` asks for
    the place. Otherwise all families of variables that are there must agree
    with the first complete one.

    Args:
        environ: Environment variables, usually `os.environ`.

    Returns:
        The place of this process; size 1 if there is no launcher.

    Raises:
        LaunchError: The description is partial or contradictory.
    """
    if read_setting(environ, "HVD_ELASTIC"):
        number = _number("HVD_MEMBER", environ)
        return Topology(launcher=HVDRUN, member=number)
    environ = launchers.with_documents(environ)
    found = [family for family in FAMILIES if family.found_in(environ)]
    complete = [family for family in found if not _missing(family, environ)]
    # A cluster may describe a job of one node without any launcher.
    found = [f for f in found if f in complete or environ.get(f.size) != "1"]
    if not complete:
        if found:
            raise LaunchError(_partial(found[0], environ))
        num_hosts = launchers.num_pet_hosts(environ)
        if num_hosts > 1:
            raise LaunchError(
                "`PET_NNODES` counts hosts, not ranks: start the ranks of each "
                "host with `hvdrun python ...`. Received: "
                f"PET_NNODES={environ['PET_NNODES']}."
            )
        return Topology()
    chosen = complete[0]
    topology = _read(chosen, environ)
    if chosen is FAMILIES[0] and environ.get("HVD_RENDEZVOUS", "").strip():
        launcher = environ.get("HVD_LAUNCHER", "").strip() or HVDRUN
        return dataclasses.replace(topology, launcher=launcher)
    for family in found:
        # What describes hosts may well count otherwise.
        if family.is_of_hosts and not chosen.is_of_hosts:
            continue
        _check_agreement(chosen, family, environ)
    return topology


def _missing(family: Family, environ: Mapping[str, str]) -> list[str]:
    return [
        name
        for name in family.required()
        if name and not environ.get(name, "").strip()
    ]


def _partial(family: Family, environ: Mapping[str, str]) -> str:
    present = [f"{n}={environ[n]}" for n in family.required() if n in environ]
    return (
        f"The variables of {family.name} must all be set. Received: "
        f"{', '.join(present)}; missing: "
        f"{', '.join(_missing(family, environ))}. Start the ranks with "
        "`hvdrun -np N python ...`, or unset variables that are left over "
        "from another job."
    )


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ.get(name, "").strip()
    if not text.isdecimal():
        raise LaunchError(
            f"`{name}` must be a whole number. Received: {text!r}."
        )
    return int(text)


def _read(family: Family, environ: Mapping[str, str]) -> Topology:
    rank = _number(family.rank, environ)
    size = _number(family.size, environ)
    local_rank, local_size = 0, 1
    if family.local_rank:
        local_rank = _number(family.local_rank, environ)
        local_size = _number(family.local_size, environ)
    _check_ranges(family, environ, rank, size, local_rank, local_size)
    cross_size = -(-size // local_size)
    if family.cross_size and environ.get(family.cross_size, "").strip():
        cross_size = _number(family.cross_size, environ)
    if family.cross_rank and environ.get(family.cross_rank, "").strip():
        cross_rank = _number(family.cross_rank, environ)
    elif rank % local_size == local_rank:  # host by host
        cross_rank = rank // local_size
    else:  # in turn
        cross_rank = rank % cross_size
    topology = Topology(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=cross_rank,
        cross_size=cross_size,
        launcher=family.name,
        job_identity=_identity(family, environ),
    )
    if cross_size == 1:
        return topology
    rendezvous = _rendezvous(family.first_host(environ), topology.job_identity)
    return dataclasses.replace(topology, rendezvous=rendezvous)


def _rendezvous(first_host: str, job_identity: str) -> str:
    """Returns where rank 0 serves; its port comes from the name of the job."""
    if not first_host:
        return ""
    found = addresses.host_and_port(first_host)
    if found is not None:
        return addresses.of_tcp(*found)
    digest = hashlib.sha256(job_identity.encode()).digest()
    number = int.from_bytes(digest[:4], "big") % _NUM_PORTS
    return addresses.of_tcp(first_host.strip("[]"), _FIRST_PORT + number)


def _check_ranges(
    family: Family,
    environ: Mapping[str, str],
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
) -> None:
    if not rank < size or not local_rank < local_size or local_size > size:
        names = [name for name in family.required() if name]
        raise LaunchError(
            f"The variables of {family.name} must hold rank < size, local "
            "rank < local size and local size <= size. Received: "
            + " ".join(f"{name}={environ[name]}" for name in names)
            + "."
        )


def _identity(family: Family, environ: Mapping[str, str]) -> str:
    values = [environ.get(name, "") for name in family.identity]
    if not family.identity:
        values = [launchers.process_manager()]
    if not any(values):
        return ""
    return "\n".join([family.name, *values])


def _check_agreement(
    chosen: Family, other: Family, environ: Mapping[str, str]
) -> None:
    for mine, theirs in (
        (chosen.rank, other.rank),
        (chosen.size, other.size),
        (chosen.local_rank, other.local_rank),
    ):
        if not mine:
            continue
        value = environ.get(theirs, "").strip()
        if value and value != environ[mine].strip():
            raise LaunchError(
                "Launchers that describe the same process must agree. "
                f"{chosen.name} says {_describe(chosen, environ)}; "
                f"{other.name} says {_describe(other, environ)}. Unset the "
                "variables of the one that did not start this job."
            )


def _describe(family: Family, environ: Mapping[str, str]) -> str:
    names = [name for name in family.required() if name in environ]
    return " ".join(f"{name}={environ[name]}" for name in names)
