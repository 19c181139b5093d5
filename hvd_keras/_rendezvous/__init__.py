"""Brings the ranks of a job together before the core takes over.

The one primitive is `Rendezvous.exchange(value) -> values of all ranks`. From
outside hvd_keras this package imports only the standard library, because the
launcher uses it too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_keras._rendezvous import (
    addresses,
    client,
    interfaces,
    launchers,
    local_server,
    pmi,
    secret,
    tls,
)
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.giving import give
from hvd_keras._rendezvous.protocol import Identity, Report, ReportKind, Role
from hvd_keras._rendezvous.topology import HVDRUN, Topology, detect
from hvd_keras.config import Config
from hvd_keras.exceptions import HvdError, LaunchError

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Rendezvous",
    "ReportKind",
    "Topology",
    "detect",
    "give_result",
    "join",
    "reporter",
    "tell",
]


def join(
    topology: Topology,
    config: Config,
    last_generation: int,
    on_notice: Callable[[str], None],
) -> Rendezvous:
    """Meets the other ranks for one `init()`.

    Args:
        topology: The place of this process; its size is over 1, or it is a
            member of an elastic job.
        config: Where to meet, and how long to wait.
        last_generation: The last one that this process was told; 0: none.
        on_notice: Called with a line for the log while other ranks are late.

    Returns:
        A connection over which the ranks exchange values. It has the generation
        that this process has joined, and in an elastic job the seat.
    """
    identity = _identity(topology, config, last_generation)
    address, key, is_of_rank_0 = _meeting_point(topology, config)
    if is_of_rank_0 and topology.rank == 0:
        local_server.serve(address, key, topology.size, last_generation, config)
    warning_seconds = config.stall_warning_seconds
    return Rendezvous(
        address,
        key,
        identity,
        timeout_seconds=config.start_timeout_seconds,
        warning_seconds=0 if config.stall_check_disable else warning_seconds,
        on_notice=on_notice,
        is_of_rank_0=is_of_rank_0,
        tls=_tls(address, config),
    )


def tell(
    topology: Topology,
    config: Config,
    generation: int,
    kind: ReportKind,
    text: str = "",
    *,
    rank: int | None = None,
) -> bool:
    """Tells hvdrun something, if it started this rank; never raises.

    Args:
        topology: The place of this process.
        config: Where hvdrun is.
        generation: The last generation of this process.
        kind: What it is.
        text: See `ReportKind`.
        rank: The rank that it is of; None: this one.

    Returns:
        Whether hvdrun has heard it.
    """
    if _is_alone(topology):
        return False
    # If this fails, hvdrun will still see the exit code.
    with contextlib.suppress(HvdError, OSError):
        to = reporter(topology, config, generation)
        if to is not None:
            of = to.identity.rank if rank is None else rank
            to.tell_last(Report(kind, of, text))
            return True
    return False


def reporter(
    topology: Topology, config: Config, generation: int
) -> Rendezvous | None:
    """Connects to hvdrun to `tell` it more than once; None: it is not there.

    Raises:
        HvdError: It refuses.
    """
    if not _is_of_hvdrun(topology, config):
        return None
    address, key, _ = _meeting_point(topology, config)
    # Who is alone has met nobody, and counts its generations itself.
    met_in = 0 if _is_alone(topology) else generation
    identity = _identity(topology, config, met_in)
    return client.reporter(address, key, identity, _tls(address, config))


def give_result(topology: Topology, config: Config, value: bytes) -> None:
    """Hands hvdrun, which has started this rank, what its function returned.

    Raises:
        LaunchError: hvdrun is gone, or cannot store it.
    """
    address, key, _ = _meeting_point(topology, config)
    give(
        address,
        key,
        _identity(topology, config, 0),
        value,
        timeout_seconds=config.start_timeout_seconds,
        tls=_tls(address, config),
    )


def _is_alone(topology: Topology) -> bool:
    return topology.size == 1 and topology.member is None


def _identity(topology: Topology, config: Config, generation: int) -> Identity:
    if topology.member is not None:
        host = config.hostname or ""  # "": all members are on one host
        return Identity(
            Role.MEMBER, topology.member, 0, generation, os.getpid(), host=host
        )
    return Identity(
        Role.MEMBER,
        topology.rank,
        topology.size,
        generation,
        os.getpid(),
        topology.local_rank,
        _host(config) if topology.cross_size > 1 else "",
    )


def _host(config: Config) -> str:
    return config.hostname or interfaces.host_name()


def _is_of_hvdrun(topology: Topology, config: Config) -> bool:
    """Whether hvdrun serves, and not rank 0."""
    if config.rendezvous is None:
        return False
    is_tcp = addresses.is_tcp(config.rendezvous)
    return not is_tcp or topology.launcher == HVDRUN


def _meeting_point(
    topology: Topology, config: Config
) -> tuple[str, bytes, bool]:
    """Returns where to meet, the secret, and whether rank 0 serves there."""
    if config.rendezvous is not None:
        address = addresses.parse(config.rendezvous)
        if _is_of_hvdrun(topology, config):
            return address, secret.parse_secret(config.secret), False
        return address, secret.require(config), True
    if topology.cross_size > 1:
        if topology.launcher == launchers.MPICH and os.environ.get("PMI_FD"):
            return *_shared_by_mpich(topology, config), True
        if not topology.rendezvous:
            raise LaunchError(
                f"The hosts of {topology.launcher} cannot find each other: its "
                "variables do not say where rank 0 is. Set HVD_RENDEZVOUS="
                "tcp:HOST:PORT on all ranks: the host of rank 0, and a free "
                "port there."
            )
        return topology.rendezvous, secret.require(config), True
    path, key = _own_address(topology, config)
    return path, key, True


@functools.cache
def _shared_by_mpich(topology: Topology, config: Config) -> tuple[str, bytes]:
    """Returns where rank 0 serves, and a secret that it has made.

    They stay the same at the next `init()`, as they do with other launchers.
    """
    value = None
    if topology.rank == 0:
        if config.interface is not None:
            own = interfaces.address_of(config.interface)
        else:
            own = interfaces.outward_address()
        port = interfaces.free_port(own)
        made = secret.find(config) or secrets.token_bytes(32)
        value = f"{addresses.of_tcp(own, port)}/{made.hex()}"
    found = pmi.share(os.environ, value, config.start_timeout_seconds)
    address, _, digits = found.rpartition("/")
    return address, secret.parse_secret(digits)


def _tls(address: str, config: Config) -> ssl.SSLContext | None:
    if not addresses.is_tcp(address):
        return None
    return tls.context(config, is_server=False)


def _own_address(topology: Topology, config: Config) -> tuple[str, bytes]:
    job_identity = topology.job_identity
    if not job_identity:
        raise LaunchError(
            f"The ranks of {topology.launcher} cannot find each other: "
            "nothing in the environment names the job. Start them with "
            f"`hvdrun -np {topology.size} python ...`."
        )
    key = secret.find(config) or local_server.secret_of(job_identity)
    return local_server.announcement_path(job_identity), key
