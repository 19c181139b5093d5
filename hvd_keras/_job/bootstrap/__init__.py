"""Brings the ranks of a job together before the core takes over.

The one primitive is `Rendezvous.exchange(value) -> values of all ranks`. From
outside hvd_keras this package imports only the standard library, because the
launcher uses it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hvd_keras._job.bootstrap import local_server
from hvd_keras._job.bootstrap.client import Rendezvous, parse_secret, report
from hvd_keras._job.bootstrap.topology import Topology, detect
from hvd_keras._job.bootstrap.wire import Identity, Role
from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError, LaunchError

__all__ = [
    "Rendezvous",
    "Topology",
    "detect",
    "join",
    "report_failure",
    "report_leaving",
]


def join(
    topology: Topology,
    config: Config,
    last_epoch: int,
    on_notice: Callable[[str], None],
) -> Rendezvous:
    """Meets the other ranks for one `init()`.

    Args:
        topology: The place of this process; its size is over 1.
        config: Where to meet, and how long to wait.
        last_epoch: The last epoch that this process was told; 0: none.
        on_notice: Called with a line for the log while other ranks are late.

    Returns:
        A connection over which the ranks exchange values. It has the epoch that
        this process has joined.
    """
    identity = _identity(topology, last_epoch)
    in_launcher = config.rendezvous is not None
    if in_launcher:
        path, secret = _launcher_address(config)
    else:
        path, secret = _own_address(topology, config)
        if topology.rank == 0:
            local_server.serve(path, secret, topology.size, last_epoch)
    warning_seconds = config.stall_warning_seconds
    return Rendezvous(
        path,
        secret,
        identity,
        timeout_seconds=config.start_timeout_seconds,
        warning_seconds=0 if config.stall_check_disable else warning_seconds,
        on_notice=on_notice,
        is_announced=not in_launcher,
    )


def report_failure(
    topology: Topology, config: Config, epoch: int, reason: str
) -> None:
    """Tells hvdrun, if it started this rank, that the rank is failing."""
    if config.rendezvous is not None and topology.size > 1:
        path, secret = _launcher_address(config)
        report(path, secret, _identity(topology, epoch), reason)


def report_leaving(topology: Topology, config: Config, epoch: int) -> None:
    """Tells hvdrun, if it started this rank, that the rank is ending."""
    report_failure(topology, config, epoch, "")


def _identity(topology: Topology, epoch: int) -> Identity:
    return Identity(
        Role.MEMBER, topology.rank, topology.size, epoch, os.getpid()
    )


def _launcher_address(config: Config) -> tuple[str, bytes]:
    scheme, _, path = (config.rendezvous or "").partition(":")
    if scheme != "unix" or not path.startswith(("/", "@")):
        raise ConfigError(
            "`HVD_RENDEZVOUS` must be unix:/path/of/a/socket or unix:@name. "
            "Received: "
            f"{config.rendezvous!r}."
        )
    return path, parse_secret(config.secret)


def _own_address(topology: Topology, config: Config) -> tuple[str, bytes]:
    job_identity = topology.job_identity
    if not job_identity:
        raise LaunchError(
            f"The ranks of {topology.launcher} cannot find each other: "
            "nothing in the environment names the job. Start them with "
            f"`hvdrun -np {topology.size} python ...`."
        )
    secret = local_server.secret_of(job_identity)
    if config.secret is not None:
        secret = parse_secret(config.secret)
    return local_server.announcement_path(job_identity), secret
