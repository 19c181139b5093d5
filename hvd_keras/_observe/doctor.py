"""Names the rank that is at fault, and why, from what the ranks have left.

The rules go from what is certain to what is likely; the first that applies
counts. They read no texts of errors, only the classes in front of them.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low

from hvd_keras._observe.evidence import Job, Rank, Record
from hvd_keras._observe.history import Key, next_calls
from hvd_keras._observe.links import slow_sender
from hvd_keras._observe.stacks import Frame

# Errors that tell of other ranks. A rank that ends by one is no cause.
_OF_OTHERS = (
    "PeerLostError", "StalledError", "ShutdownError", "MismatchError",
    "KeyboardInterrupt",
)  # fmt: skip
# Of the time of a job, that makes a rank or a link worth naming.
_SLOW_SHARE = 0.2
_RECENT = 500  # collectives that tell whether a rank is slow
# Of a job that goes on, or that was interrupted, only a wait that has lasted as
# long is a fault.
_HANG_SECONDS = 2.0


class Cause(enum.Enum):
    """What went wrong."""

    DEAD = "dead"
    STOPPED = "stopped"
    MISMATCH = "mismatch"
    SKIPPED = "skipped collective"
    DIVERGED = "diverged code"
    ORDER = "another order"
    SLOW_INPUT = "slow input"
    SLOW_LINK = "slow link"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Which rank, why, and where in the user's code."""

    cause: Cause
    rank: int
    sentence: str
    frame: Frame | None = None


def diagnose(job: Job) -> Verdict | None:
    """Returns what is wrong with a job; None if nothing can be told."""
    for rule in (_dead, _stopped, _mismatched, _missing, _slow):
        verdict = rule(job)
        if verdict is not None:
            return verdict
    return None


def name_of(rank: Rank) -> str:
    """Names a rank with its process."""
    parts = [f"host {rank.host}"] if rank.host else []
    parts += [f"pid {rank.pid}"] if rank.pid else []
    return f"rank {rank.rank}" + (f" ({', '.join(parts)})" if parts else "")


def clock(seconds: float) -> str:
    """The local time of day of a time of the Unix clock."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _at(frame: Frame | None) -> str:
    return "" if frame is None else f" at {frame}"


def _last(rank: Rank) -> str:
    """What it has done last, as a clause that begins with a semicolon."""
    last = rank.last_done
    if last is None:
        return ""
    step = f"step {rank.num_steps}, then " if rank.num_steps else ""
    return f"; it finished {step}'{last.name}' at {clock(last.ended)}"


def _stay(rank: Rank) -> str:
    """As `_last`, and where it has been since then."""
    last, frame = rank.last_done, rank.frame
    if frame is None:
        return _last(rank)
    if last is None:
        return f"; it is at {frame}"
    return f"{_last(rank)}, and has been at {frame} since then"


# ---- A rank that is gone, or does nothing ----


def _dead(job: Job) -> Verdict | None:
    for number in (*job.leavers, *job.ranks):
        rank = job.ranks[number]
        if rank.is_lost or _ended_by_itself(rank):
            sentence = f"{name_of(rank)} {_end_of(rank)}{_last(rank)}"
            return Verdict(Cause.DEAD, number, sentence, rank.frame)
    return None


def _ended_by_itself(rank: Rank) -> bool:
    error = _error_of(rank)
    if error:
        return not error.startswith(_OF_OTHERS) and not _failed(rank)
    if rank.was_ended or not rank.exit_status:
        return False
    return bool(rank.signal) or not _failed(rank)


def _error_of(rank: Rank) -> str:
    """The exception that has ended it; "": there was none."""
    return rank.told or (rank.reason if rank.error else "")


def _failed(rank: Rank) -> bool:
    """Whether a collective has failed before it ended: others may be why."""
    last = rank.last_done
    since = last.ended if last else 0.0
    return any(
        one.state == "failed"
        and one.error not in ("Shutdown", "InvalidArgument")
        and one.ended >= since
        for one in rank.records
    )


def _end_of(rank: Rank) -> str:
    if rank.is_lost:
        return "was lost with its host"
    if error := _error_of(rank):
        return f"raised {error}{_at(rank.frame)}"
    if rank.signal:
        return f"was killed by {rank.signal}{_at(rank.frame)}"
    return f"exited with code {rank.exit_status}{_at(rank.frame)}"


def _stopped(job: Job) -> Verdict | None:
    stopped = [r for r in job.ranks.values() if r.state in ("T", "t")]
    if not stopped or len(stopped) == job.size:
        return None
    rank = stopped[0]
    inside = [r for r in rank.records if r.begun and not r.ended]
    where = f" inside '{inside[0].name}'" if inside else ""
    sentence = (
        f"{name_of(rank)} is stopped (state {rank.state}, as by SIGSTOP)"
        f"{where}{_stay(rank)}{_waited_for(job)}"
    )
    return Verdict(Cause.STOPPED, rank.rank, sentence, rank.frame)


def _waited_for(job: Job) -> str:
    stall = _find_stall(job)
    if stall is None:
        return ""
    since = clock(stall.call.enqueued)
    return f"; others wait in '{stall.call.name}' since {since}"


# ---- Ranks that call the same with other arguments ----


def _mismatched(job: Job) -> Verdict | None:
    failed: dict[Key, dict[int, Record]] = {}
    for rank in job.ranks.values():
        for one in rank.records:
            if one.error == "Mismatch":
                failed.setdefault(one.key, {})[rank.rank] = one
    if not failed:
        return None
    _, calls = max(
        failed.items(), key=lambda item: max(r.ended for r in item[1].values())
    )
    odd = _odd_one(calls, job)
    if odd is None:
        return None
    rank, mine = job.ranks[odd], calls[odd]
    other = next((c for r, c in calls.items() if _what(c) != _what(mine)), mine)
    sentence = (
        f"{name_of(rank)} called {mine.kind} '{mine.name}' with "
        f"{_describe(mine)}, the others with {_describe(other)}"
        f"{_at(rank.frame)}{_last(rank)}"
    )
    return Verdict(Cause.MISMATCH, odd, sentence, rank.frame)


def _what(record: Record) -> tuple[object, ...]:
    return (
        record.kind, record.op, record.dtype, record.shape, record.tensors,
        record.bytes,
    )  # fmt: skip


def _describe(record: Record) -> str:
    shape = "" if record.shape is None else f"{list(record.shape)}"
    count = f" in {record.tensors} tensors" if record.tensors > 1 else ""
    op = f", op {record.op}" if record.op else ""
    return f"{record.dtype}{shape}{count}{op}"


def _odd_one(calls: dict[int, Record], job: Job) -> int | None:
    """Who differs from what it did before, or from most others."""
    changed = []
    for rank, call in calls.items():
        earlier = [
            one
            for one in job.ranks[rank].records
            if one.key == call.key and one.number < call.number
        ]
        if earlier and _what(earlier[-1]) != _what(call):
            changed.append(rank)
    if len(changed) == 1:
        return changed[0]
    kinds = Counter(map(_what, calls.values()))
    if len(kinds) < 2:
        return None
    usual = kinds.most_common(1)[0][0]
    odd = [rank for rank, call in calls.items() if _what(call) != usual]
    return max(odd)


# ---- Ranks that wait for others ----


@dataclasses.dataclass
class _Stall:
    call: Record  # that some wait for
    waiting: list[Rank]
    missing: list[Rank]


def _missing(job: Job) -> Verdict | None:
    stall = _find_stall(job)
    if stall is None:
        return None
    # Who has ended in peace will not come.
    ended = [r for r in stall.missing if r.exit_status == 0]
    elsewhere = [r for r in stall.missing if r.waiting()]
    if ended:
        sentence = (
            f"{name_of(ended[0])} never entered '{stall.call.name}': it has "
            f"ended with status 0{_last(ended[0])}"
        )
        return Verdict(Cause.SKIPPED, ended[0].rank, sentence, ended[0].frame)
    busy = [r for r in stall.missing if not r.waiting()]
    if busy:
        return _absent(stall, busy[0])
    return _crossed(stall, elsewhere)


def _find_stall(job: Job) -> _Stall | None:
    """The call that ranks have waited for longest, and that others lack."""
    calls = sorted(
        (
            one
            for rank in job.ranks.values()
            for one in rank.waiting()
            if (one.ended and not job.was_interrupted)
            or (one.ended or rank.written) - one.enqueued >= _HANG_SECONDS
        ),
        key=lambda one: one.enqueued,
    )
    for call in calls:
        waiting: list[Rank] = []
        missing: list[Rank] = []
        for rank in job.ranks.values():
            keys = {one.key for one in rank.waiting()}
            (waiting if call.key in keys else missing).append(rank)
        if call.process_set:
            known = {
                rank.rank
                for rank in job.ranks.values()
                if any(r.process_set == call.process_set for r in rank.records)
            }
            missing = [rank for rank in missing if rank.rank in known]
        if missing:
            return _Stall(call, waiting, missing)
    return None


def _absent(stall: _Stall, rank: Rank) -> Verdict:
    sentence = (
        f"{name_of(rank)} never entered '{stall.call.name}', for which others "
        f"wait since {clock(stall.call.enqueued)}{_stay(rank)}"
    )
    return Verdict(Cause.SLOW_INPUT, rank.rank, sentence, rank.frame)


def _crossed(stall: _Stall, elsewhere: list[Rank]) -> Verdict | None:
    """Each side waits for a call that the other has not made."""
    theirs = elsewhere[0].waiting()[0]
    odd, others = elsewhere, stall.waiting
    awaited, made = stall.call, theirs
    if _is_odd(stall.waiting, stall.call, elsewhere, theirs):
        odd, others = others, odd
        awaited, made = made, awaited
    rank = odd[0]
    cause, how = _way(rank, others, awaited, made)
    sentence = (
        f"{name_of(rank)} never entered '{awaited.name}', but waits in "
        f"'{made.name}'{_at(rank.frame)}: {how}{_last(rank)}"
    )
    return Verdict(cause, rank.rank, sentence, rank.frame)


def _is_odd(
    waiting: Sequence[Rank],
    call: Record,
    missing: Sequence[Rank],
    theirs: Record,
) -> bool:
    """Whether the waiting ranks are at fault, not the missing ones."""
    expected = [_does_as_before(waiting[0], call)]
    expected += [_does_as_before(missing[0], theirs)]
    if expected[0] != expected[1]:
        return not expected[0]
    return len(waiting) < len(missing)


def _does_as_before(rank: Rank, call: Record) -> bool:
    return next(next_calls(_calls_before(rank, call)), None) == call.key


def _calls_before(rank: Rank, call: Record) -> list[Key]:
    mine = next(one for one in rank.waiting() if one.key == call.key)
    return [
        one.key
        for one in rank.records
        if one.number < mine.number and one.process_set == call.process_set
    ]


def _way(
    rank: Rank, others: Iterable[Rank], awaited: Record, made: Record
) -> tuple[Cause, str]:
    """How a rank came to wait in `made` while others wait in `awaited`."""
    known = {one.key for other in others for one in other.records}
    before = _calls_before(rank, made)
    if made.key not in known:
        return Cause.DIVERGED, "its code has taken another way"
    expected: list[Key] = []
    for key in next_calls(before):
        if expected[:1] == [key]:
            break  # from the beginning again
        expected.append(key)
    if awaited.key not in expected or made.key not in expected:
        return Cause.SKIPPED, "it has left calls out"
    if expected.index(made.key) == expected.index(awaited.key) + 1:
        return Cause.SKIPPED, f"it has left '{awaited.name}' out"
    return Cause.ORDER, "it makes its calls in another order"


# ---- Jobs that go on, but slowly ----


def _slow(job: Job) -> Verdict | None:
    recent = _recent(job)
    if len(recent) < 3:
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
    if own[slowest] - usual >= _SLOW_SHARE * seconds:
        return _late(job, slowest, recent)
    link = _union((one.begun, one.ended) for one in recent)
    if len(job.hosts) > 1 and link >= _SLOW_SHARE * seconds:
        return _slow_link(job, recent, link / seconds)
    return None


def _own_seconds(rank: Rank, begin: float) -> float:
    """The time since `begin` in which it had no collective to wait for."""
    total, end = 0.0, 0.0
    for one in rank.records:
        if one.enqueued >= begin:
            total += max(0.0, one.enqueued - end) if end else 0.0
            end = max(end, one.ended or rank.written)
    return total + (max(0.0, rank.written - end) if end else 0.0)


def _recent(job: Job) -> list[Record]:
    """The last collectives of the rank that knows who was last in each."""
    by_rank = (
        [one for one in rank.records if one.begun and one.state == "done"]
        for rank in job.ranks.values()
    )
    most = max(
        by_rank,
        key=lambda records: sum(one.last_rank >= 0 for one in records),
        default=[],
    )
    return most[-_RECENT:]


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
        f"{_at(rank.frame)}"
    )
    return Verdict(Cause.SLOW_INPUT, number, sentence, rank.frame)


def _slow_link(job: Job, recent: list[Record], share: float) -> Verdict | None:
    host = slow_sender(_durations(job))
    if host is None:
        return None
    ranks = [r.rank for r in job.ranks.values() if r.host == host]
    numbers = ", ".join(map(str, sorted(ranks)))
    rate = sum(one.bytes for one in recent) / _union(
        (one.begun, one.ended) for one in recent
    )
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
