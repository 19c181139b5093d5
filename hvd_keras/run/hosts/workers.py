"""Makes ranks of workers that another system has started, such as Ray's.

The system carries a few values between them, so it brings the secret of the job
to each worker. Rank 0 serves the rendezvous.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

from hvd_keras._common import horovod_site
from hvd_keras._rendezvous import addresses, interfaces
from hvd_keras.run.ranks import environment

_LOOPBACK = "127.0.0.1"


def meeting_point(num_hosts: int) -> str:
    """Returns an address where this process, as rank 0, can serve.

    Args:
        num_hosts: Number of hosts that have ranks.
    """
    own = os.environ.get("HVD_INTERFACE")
    if own:
        own = interfaces.address_of(own)
    else:
        own = _LOOPBACK if num_hosts == 1 else interfaces.outward_address()
    return addresses.of_tcp(own, interfaces.free_port(own))


def by_host(hosts: Sequence[str]) -> list[int]:
    """Returns the workers in an order that puts those of a host together.

    Args:
        hosts: The host of each worker.
    """
    first = {host: hosts.index(host) for host in hosts}
    return sorted(range(len(hosts)), key=lambda worker: first[hosts[worker]])


def variables(
    hosts: Sequence[str], rendezvous: str, launcher: str
) -> list[dict[str, str]]:
    """Returns the variables that tell each rank its place, by rank.

    Args:
        hosts: The host of each rank.
        rendezvous: Where rank 0 serves.
        launcher: Who has started the workers, for messages.
    """
    secret = secrets.token_hex(32)
    distinct = list(dict.fromkeys(hosts))
    return [
        {
            "HVD_RANK": str(rank),
            "HVD_SIZE": str(len(hosts)),
            "HVD_LOCAL_RANK": str(hosts[:rank].count(host)),
            "HVD_LOCAL_SIZE": str(hosts.count(host)),
            "HVD_CROSS_RANK": str(distinct.index(host)),
            "HVD_CROSS_SIZE": str(len(distinct)),
            "HVD_LAUNCHER": launcher,
            "HVD_RENDEZVOUS": rendezvous,
            "HVD_SECRET": secret,
        }
        for rank, host in enumerate(hosts)
    ]


def become_rank(found: Mapping[str, str], *, is_horovod: bool = False) -> None:
    """Makes this process the rank that `variables` describe.

    Call it before a framework is imported, for it sets the threads of each.

    Args:
        found: The variables.
        is_horovod: Whether `import horovod` must work.
    """
    os.environ.update(found)
    if is_horovod:
        horovod_site.use()
        os.environ.update(horovod_site.of_rank(os.environ))
    os.environ.update(
        environment.defaults(
            os.environ,
            int(found["HVD_LOCAL_SIZE"]),
            has_more_hosts=found["HVD_CROSS_SIZE"] != "1",
        )
    )
