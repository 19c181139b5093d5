"""Jobs that go on, but slowly: by the code of a rank, or by a link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low

from hvd_keras._observe.verdict import Cause, Verdict, name_of, place
from hvd_keras._records.evidence import Job, Rank, Record
from hvd_keras._records.links import slow_sender

# Of the time of a job, that makes a rank or a link worth naming.
_SLOW_SHARE = 0.2
_RECENT = 500  # collectives that tell whether a rank is slow
_FEW = 16  # of so few, none can be left out
# A job that an error has ended may still have been slow before. That takes more
# evidence: so many collectives, and so many seconds lost.
_MANY = 20
_LONG_SECONDS = 1.0


def diagnose(job: Job) -> Verdict | None:
    """A rank, or the link of a host, takes much of the time."""
    recent = _recent(job)
    has_failed = any(map(_has_failed, job.ranks.values()))
    if job.was_interrupted or len(recent) < (_MANY if has_failed else 3):
        return None
    begin = min(one.enqueued for one in recent)
    seconds = max(one.ended for one in recent) - begin
    own = {
        rank.rank: _own_seconds(rank, begin)
        for rank in job.ranks.values()
        if rank.has_record
    }
    slowest = max(own, key=lambda rank: own[rank])
    usual = median_low(sorted(own.values()))
    much = max(_SLOW_SHARE * seconds, _LONG_SECONDS if has_failed else 0.0)
    if own[slowest] - usual >= much:
        return _late(job, slowest, recent)
    link = _union((one.begun, one.ended) for one in recent)
    if len(job.hosts) > 1 and link >= much:
        return _slow_link(job, recent, link, link / seconds)
    return None


def _has_failed(rank: Rank) -> bool:
    return bool(rank.told or rank.error or rank.exit_status)


def _own_seconds(rank: Rank, begin: float) -> float:
    """The time since `begin` in which it had no collective to wait for."""
    total, end = 0.0, 0.0
    for one in rank.records:
        if one.enqueued >= begin:
            total += max(0.0, one.enqueued - end) if end else 0.0
            end = max(end, one.ended or rank.written)
    return total + (max(0.0, rank.written - end) if end else 0.0)


def _recent(job: Job) -> list[Record]:
    """The last collectives of the rank that knows who was last in each.

    The first half is left out: a job that has just begun compiles there.
    """
    by_rank = (
        [one for one in rank.records if one.begun and one.state == "done"]
        for rank in job.ranks.values()
    )
    most = max(
        by_rank,
        key=lambda records: sum(one.last_rank >= 0 for one in records),
        default=[],
    )
    first = len(most) // 2 if len(most) > _FEW else 0
    return most[first:][-_RECENT:]


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """The time that is covered by at least one of the spans."""
    total, end = 0.0, 0.0
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total


def _late(job: Job, number: int, recent: Sequence[Record]) -> Verdict:
    rank = job.ranks[number]
    late = [one.late for one in recent if one.last_rank == number]
    how = ""
    if late:
        how = (
            f" was last in {100 * len(late) / len(recent):.0f} % of the last "
            f"{len(recent)} collectives, by {1e3 * sum(late) / len(late):.3g} "
            "ms on average:"
        )
    sentence = (
        f"{name_of(rank)}{how} its own code, such as its input, is slow"
        f"{place(rank.frame)}"
    )
    return Verdict(Cause.SLOW_INPUT, number, sentence, rank.frame)


def _slow_link(
    job: Job, recent: Sequence[Record], seconds: float, share: float
) -> Verdict | None:
    host = slow_sender(_durations(job))
    if host is None:
        return None
    ranks = [r.rank for r in job.ranks.values() if r.host == host]
    numbers = ", ".join(map(str, sorted(ranks)))
    rate = sum(one.bytes for one in recent) / seconds
    sentence = (
        f"host {host} (rank{'s' * (len(ranks) > 1)} {numbers}) sends slowly: "
        f"data between hosts takes {100 * share:.0f} % of the time, at "
        f"{rate / 1e6:.3g} MB/s, and the other hosts wait for it"
    )
    return Verdict(Cause.SLOW_LINK, min(ranks), sentence)


def _durations(job: Job) -> dict[str, float]:
    """The time that the same collectives took, by host."""
    found: dict[tuple[object, ...], dict[str, float]] = {}
    for _, rank in sorted(job.ranks.items(), reverse=True):
        for one in rank.records[-_RECENT:]:
            if one.id and one.state == "done":
                by_host = found.setdefault((one.id, one.key), {})
                by_host[rank.host] = one.ended - one.begun
    hosts = set(job.hosts)
    shared = [by_host for by_host in found.values() if set(by_host) == hosts]
    return {
        host: sum(by_host[host] for by_host in shared)
        for host in hosts
        if shared
    }
