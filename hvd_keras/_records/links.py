"""Which host sends slowly."""

from __future__ import annotations

from collections.abc import Mapping

# On the host that sends slowly, collectives take so much of their time on the
# next one at most.
_QUICKER = 0.9


def slow_sender(seconds: Mapping[str, float]) -> str | None:
    """Returns the host whose data the others wait for; None: none stands out.

    Who sends slowly gets all data soon, and ends before the others.

    Args:
        seconds: The time that the same collectives took, by host.
    """
    if len(seconds) < 2:
        return None
    host, second, *_ = sorted(seconds, key=lambda one: seconds[one])
    return host if seconds[host] <= _QUICKER * seconds[second] else None
