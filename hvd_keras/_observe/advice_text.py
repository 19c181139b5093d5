"""A piece of advice, and the words for its figures."""

from __future__ import annotations

import dataclasses

from hvd_keras._observe.analysis import Analysis


@dataclasses.dataclass(frozen=True)
class Advice:
    """One piece of it."""

    rule: str  # the name of the rule, for tests and links
    severity: str  # "problem", "hint" or "good"
    text: str  # one sentence: what is
    cure: str  # what helps; may be empty
    has_cause: bool = True  # whether the record tells why


def name_ranks(
    analysis: Analysis, ranks: list[int], *, hosts: bool = True
) -> str:
    """As `plain_ranks`; one rank alone with its host and pid."""
    text = plain_ranks(ranks)
    if len(ranks) == 1 and hosts:
        own = [o for o in analysis.recording.ranks if o.rank == ranks[0]]
        text += f" (host {own[0].host}, pid {own[0].pid})" if own else ""
    return text


def plain_ranks(ranks: list[int]) -> str:
    """Returns "rank 3" or "ranks 0, 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = listed([str(rank) for rank in ranks[:5]])
    more = f" and {len(ranks) - 5} more" if len(ranks) > 5 else ""
    return f"ranks {shown}{more}"


def listed(texts: list[str]) -> str:
    """Returns "a, b and c"."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def counted(number: int, noun: str) -> str:
    """Returns "1 event" or "2 events"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def percent(share: float) -> str:
    """Returns a share in percent."""
    return f"{100 * share:.0f} %"


def ms(ns: float) -> str:
    """Returns a time in ms."""
    value = ns / 1e6
    return f"{value:.0f} ms" if value >= 9.5 else f"{value:.2g} ms"


def seconds(ns: float) -> str:
    """Returns a time in s."""
    return f"{ns / 1e9:.1f} s"


def in_bytes(num_bytes: float) -> str:
    """Returns bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def rate(bytes_a_second: float) -> str:
    """Returns bytes a second with a unit."""
    if bytes_a_second < 1e9:
        return f"{bytes_a_second / 1e6:.0f} MB/s"
    return f"{bytes_a_second / 1e9:.1f} GB/s"
