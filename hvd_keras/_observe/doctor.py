"""Names the rank that is at fault, and why, from what the ranks have left.

The rules go from what is certain to what is likely; the first that applies
counts. They read no texts of errors, only the classes in front of them.
"""

from __future__ import annotations

from collections import Counter

from hvd_keras._observe import slowness, stalls
from hvd_keras._observe.call_words import called, words_of
from hvd_keras._observe.history import Key
from hvd_keras._observe.verdict import (
    Cause,
    Verdict,
    clock,
    last_of,
    name_of,
    place,
    position_of,
    stay_of,
)
from hvd_keras._records.blame import Blame, End, Evidence, Tells, blame, tells
from hvd_keras._records.evidence import Job, Rank, Record


def diagnose(job: Job) -> Verdict | None:
    """Returns what is wrong with a job; None if nothing can be told."""
    for rule in (
        *(_dead, _stopped, _mismatched, _agreed),
        *(stalls.diagnose, slowness.diagnose),
    ):
        verdict = rule(job)
        if verdict is not None:
            return verdict
    return None


# ---- A rank that is gone, or does nothing ----


def _dead(job: Job) -> Verdict | None:
    found = _blame(job)
    if found.rank is None or not found.is_certain:
        return None
    rank = job.ranks[found.rank]
    if rank.exit_call and (verdict := stalls.diagnose(job)) is not None:
        return verdict
    done = last_of(rank) if rank.has_record else _others_of(job)
    sentence = f"{name_of(rank)} {_end_of(rank)}{done}"
    return Verdict(Cause.DEAD, rank.rank, sentence, rank.frame)


def _others_of(job: Job) -> str:
    """Where the others were, if a rank has left no record."""
    for _, rank in sorted(job.ranks.items()):
        if rank.batch:
            return f"; rank {rank.rank} was in {position_of(rank)}"
    return ""


def _blame(job: Job) -> Blame:
    order = dict.fromkeys([*job.leavers, *job.ranks])
    ends = [_end(job.ranks[rank]) for rank in order]
    return blame(Evidence(ends, job.was_interrupted))


def _end(rank: Rank) -> End:
    error = _error_of(rank)
    return End(
        rank.rank,
        error,
        rank.exit_status,
        rank.signal,
        rank.was_ended,
        rank.is_lost,
        saw_failure=bool(error or rank.exit_status) and _failed(rank),
        last_words=rank.exit_call,
    )


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
        text, where = f"raised {error.rstrip('.')}", place(rank.frame)
        return text if text.endswith(where) else f"{text}{where}"
    if rank.signal:
        return f"was killed by {rank.signal}{place(rank.frame)}"
    if rank.exit_call:
        return f"called {rank.exit_call}"
    return f"exited with code {rank.exit_status}{place(rank.frame)}"


def _stopped(job: Job) -> Verdict | None:
    stopped = [r for r in job.ranks.values() if r.state in ("T", "t")]
    if not stopped or len(stopped) == job.size:
        return None
    rank = stopped[0]
    inside = [r for r in rank.records if r.begun and not r.ended]
    where = f" inside {words_of(inside[0])}" if inside else ""
    sentence = (
        f"{name_of(rank)} is stopped (state {rank.state}, as by SIGSTOP)"
        f"{where}{stay_of(rank)}{_waited_for(job)}"
    )
    return Verdict(Cause.STOPPED, rank.rank, sentence, rank.frame)


def _waited_for(job: Job) -> str:
    stall = stalls.find_stall(job)
    if stall is None:
        return ""
    since = clock(stall.call.enqueued)
    return f"; others wait in {words_of(stall.call)} since {since}"


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
        return _undecided(calls, job)
    rank, mine = job.ranks[odd], calls[odd]
    other = next((c for r, c in calls.items() if _what(c) != _what(mine)), mine)
    if _describe(mine) == _describe(other):  # the error names the tensor
        return None
    sentence = (
        f"{name_of(rank)} called {called(mine)} with "
        f"{_describe(mine)}, the others with {_describe(other)}"
        f"{place(rank.frame)}{last_of(rank)}"
    )
    return Verdict(Cause.MISMATCH, odd, sentence, rank.frame)


def _undecided(calls: dict[int, Record], job: Job) -> Verdict | None:
    """Two sides of as many ranks: no rank is to blame rather than another."""
    sides = {_what(call): rank for rank, call in sorted(calls.items())[::-1]}
    ranks = [job.ranks[rank] for rank in sorted(sides.values())]
    places = [place(rank.frame) for rank in ranks]
    is_same_line = len(set(places)) == 1
    if len(sides) < 2 or (is_same_line and _blame(job).shared_error):
        return None  # the error names the tensor, and maybe the cure
    texts = [
        f"{name_of(rank)} with {_describe(calls[rank.rank])}{at}"
        for rank, at in zip(ranks, places, strict=True)
    ]
    sentence = (
        f"{called(calls[ranks[0].rank])} was called by {' and '.join(texts)}"
    )
    if not is_same_line:
        sentence += (
            ": one of them has made a call too many, or in another order; "
            "`name=...` tells calls apart"
        )
    return Verdict(Cause.MISMATCH, None, sentence)


def _agreed(job: Job) -> Verdict | None:
    """All ranks that nobody has killed ended with the same error, or so."""
    found = _blame(job)
    if (status := found.shared_status) is not None:
        call = next(iter(job.ranks.values())).exit_call
        how = f"called {call}" if call else f"exited with code {status}"
        sentence = f"all ranks {how}"
        return Verdict(Cause.DEAD, None, sentence)
    error = found.shared_error
    if not error:
        return None
    rank = next(
        rank
        for _, rank in sorted(job.ranks.items())
        if _error_of(rank) == error
    )
    at = f", in {position_of(rank)}" if rank.batch else ""
    kind, colon, words = error.rstrip(".").partition(": ")
    text = f"{kind}{place(rank.frame)}{at}{colon}{words}"
    is_mismatch = tells(error) == Tells.ALL
    cause = Cause.MISMATCH if is_mismatch else Cause.DEAD
    return Verdict(cause, None, f"all ranks raised {text}", rank.frame)


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
    (usual, most), *rest = kinds.most_common()
    if rest[0][1] == most:
        return None
    odd = [rank for rank, call in calls.items() if _what(call) != usual]
    return max(odd)
