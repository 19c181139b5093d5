"""What the command line says of an elastic job."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from hvd_keras.run import discovery, placement
from hvd_keras.run.placement import Plan
from hvd_keras.run.usage import UsageError

if TYPE_CHECKING:
    from hvd_keras.run.arguments import Options


def add_to(group: argparse._ArgumentGroup) -> None:
    """Adds the options."""
    add = group.add_argument
    add("--min-np", "--min-num-proc", type=int, metavar="N",
        help="go on while N ranks are left: ranks may die, leave and join"
        )  # fmt: skip
    add("--max-np", "--max-num-proc", type=int, metavar="N",
        help="have at most N ranks (default: -np)")  # fmt: skip
    add("--max-restarts", "--reset-limit", type=int, default=3, metavar="K",
        help="start failed ranks again, K times (3)")  # fmt: skip
    add("--restart-delay", type=float, default=1.0, metavar="SECONDS",
        help="time before that (1)")  # fmt: skip
    add("--elastic-timeout", type=float, default=600.0, metavar="SECONDS",
        help="how long to wait for --min-np ranks (600)")  # fmt: skip
    add("--host-discovery-script", metavar="FILE",
        help="a program that prints the hosts, as host:N; it runs each second"
        )  # fmt: skip
    add("--slots-per-host", type=int, default=1, metavar="N",
        help="slots of a host that it prints without :N (1)")  # fmt: skip
    add("--blacklist-cooldown", "--blacklist-cooldown-range", nargs=2,
        type=float, metavar=("MIN", "MAX"),
        help="a host whose ranks fail gets no new ones for MIN seconds, twice "
        "as long each time, up to MAX; lost hosts are tried again then"
        )  # fmt: skip
    add("--evict-stragglers", type=float, metavar="FACTOR",
        help="have a rank leave that makes most steps longer by this factor, "
        "and start another after a minute (see HVD_STRAGGLER_SECONDS)"
        )  # fmt: skip


def check(options: Options, plan: Plan) -> None:
    """Raises UsageError if the numbers of an elastic job make no sense."""
    if options.min_np is None:
        if (
            options.max_np is not None
            or options.blacklist_cooldown
            or options.evict_stragglers is not None
        ):
            raise UsageError(
                "`--max-np`, `--blacklist-cooldown` and `--evict-stragglers` "
                "must be given with --min-np, which makes a job elastic. "
                "Received: none."
            )
        return
    factor = options.evict_stragglers
    if factor is not None and factor <= 1:
        raise UsageError(
            f"`--evict-stragglers` must be over 1. Received: {factor:g}."
        )
    low, high = options.min_np, options.max_np or plan.num_ranks
    if low < 1 or (high is not None and low > high):
        raise UsageError(
            "`--min-np` must be in [1, --max-np]. Received: "
            f"--min-np {low}, --max-np {high}."
        )
    for name, value in (
        ("--max-restarts", options.max_restarts),
        ("--restart-delay", options.restart_delay),
        ("--elastic-timeout", options.elastic_timeout),
    ):
        if value < 0:
            raise UsageError(
                f"`{name}` must be 0 or more. Received: {value:g}."
            )
    least, most = options.blacklist_cooldown or (0.0, 0.0)
    if not 0 <= least <= most:
        raise UsageError(
            "`--blacklist-cooldown` must be two numbers of seconds, the lower "
            f"one first. Received: {least:g} {most:g}."
        )


def discovered(
    options: Options, listed: list[tuple[str, int | None]] | None
) -> Plan:
    """Returns the plan of a job whose hosts a program names.

    Raises:
        UsageError: It fails, or the command line says otherwise.
    """
    if listed is not None or options.min_np is None:
        raise UsageError(
            "`--host-discovery-script` must be given with --min-np, and "
            "without a list of hosts."
        )
    script = options.host_discovery_script or ""
    found = discovery.ask(script, options.slots_per_host)
    if options.remote_shell is not None:
        hosts = placement.of_shell(found)
    else:
        of_hosts = placement.of_hosts([*found.items()], None)
        hosts = dataclasses.replace(of_hosts, way="ssh")
    return dataclasses.replace(hosts, num_ranks=options.num_proc, may_grow=True)
