"""Ranks that wait for others: which call it is, and whose fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hvd_keras._observe.call_words import called, is_of_step, words_of
from hvd_keras._observe.history import Key, next_calls
from hvd_keras._observe.verdict import (
    Cause,
    Verdict,
    clock,
    last_of,
    name_of,
    place,
    stay_of,
)
from hvd_keras._records.evidence import IN_FIT, Job, Rank, Record

# Of a job that goes on, or that was interrupted, only a wait that has lasted as
# long is a fault.
_HANG_SECONDS = 2.0
_MOST_NAMED = 4
_CURE_OF_CALLS = (
    "make that call on all ranks, equally often, not under `if hvd.rank() == 0`"
)
_WITHOUT_KERAS = ("torch.", "jax.", "gradients/")  # names of collectives
_CURE_OF_EXITS = (
    "let all ranks end alike; `self.model.stop_training = True` on one stops "
    "`fit` on all"
)


@dataclasses.dataclass
class Stall:
    """A call that some ranks have made, and others have not."""

    call: Record
    waiting: list[Rank]
    missing: list[Rank]


def diagnose(job: Job) -> Verdict | None:
    """A rank does not come to a call that others wait in."""
    stall = find_stall(job)
    if stall is None:
        return None
    # Who has ended in peace will not come.
    ended = [r for r in stall.missing if _has_ended(job, r)]
    elsewhere = [r for r in stall.missing if r.waiting()]
    if ended:
        return _over(stall, ended[0])
    busy = [r for r in stall.missing if not r.waiting()]
    if busy:
        return _absent(stall, busy[0])
    return _crossed(stall, elsewhere)


def find_stall(job: Job) -> Stall | None:
    """The call that ranks have waited for longest, and that others lack."""
    waits = {number: rank.waiting() for number, rank in job.ranks.items()}
    keys = {number: {one.key for one in own} for number, own in waits.items()}
    calls = sorted(
        (
            one
            for number, own in waits.items()
            for one in own
            if (one.ended and not job.was_interrupted)
            or (one.ended or job.ranks[number].written) - one.enqueued
            >= _HANG_SECONDS
        ),
        key=lambda one: one.enqueued,
    )
    members_of: dict[int, list[Rank]] = {}
    # Many ranks wait for one call: the first of them speaks for all.
    for key in dict.fromkeys(one.key for one in calls):
        if key[0] not in members_of:
            members_of[key[0]] = _members(job, key[0])
        members = members_of[key[0]]
        missing = [rank for rank in members if key not in keys[rank.rank]]
        if missing:
            return Stall(
                next(one for one in calls if one.key == key),
                [r for r in job.ranks.values() if key in keys[r.rank]],
                missing,
            )
    return None


def _members(job: Job, process_set: int) -> list[Rank]:
    """The ranks of a process set, as far as they have used it."""
    return [
        rank
        for rank in job.ranks.values()
        if not process_set
        or any(one.process_set == process_set for one in rank.records)
    ]


def _has_ended(job: Job, rank: Rank) -> bool:
    """Whether it has ended, or begun to end, without an error."""
    if rank.exit_status is not None:
        return rank.exit_status == 0 or bool(rank.exit_call)
    return rank.rank in job.leavers and not (rank.told or rank.error)


def _over(stall: Stall, rank: Rank) -> Verdict:
    call, caller = stall.call, stall.waiting[0]
    numbers = ", ".join(str(one.rank) for one in stall.waiting[:_MOST_NAMED])
    more = " and others" if len(stall.waiting) > _MOST_NAMED else ""
    how = f"called {rank.exit_call}" if rank.exit_call else "ended its script"
    cure = _CURE_OF_CALLS
    is_silent = not rank.has_record and not rank.told_end
    if rank.exit_status == 0 and is_silent and caller.has_record:
        how = "left its script without ending it, as `os._exit(0)` does,"
        cure = _CURE_OF_EXITS
    elif call.name.startswith(_WITHOUT_KERAS) and _has_repeated(rank, call):
        cure = (
            "give all ranks equally many batches, or end their loops with "
            "`hvd.join()`"
        )
    elif is_of_step(call) or _has_repeated(rank, call):
        cure = (
            "let all ranks take equally many epochs and steps, as `hvd.shard` "
            "does; in `fit`, `hvd.callbacks.BroadcastGlobalVariablesCallback"
            "(0)` compares them first and stops all together, and a loop may "
            "end with `hvd.join()`"
        )
    elif call.name == "fit/data":
        cure += (
            ". If it did call `fit`, then with a plain optimizer: make a "
            "distributed one on all ranks"
        )
    if rank.exit_call.endswith(IN_FIT):
        how += ","
        cure = _CURE_OF_EXITS
    sentence = (
        f"{name_of(rank)} {how} while rank{'s' * (len(stall.waiting) > 1)} "
        f"{numbers}{more} waited in {called(call)}{place(caller.frame)}: "
        f"{cure}{last_of(rank, f'rank {rank.rank}')}"
    )
    return Verdict(Cause.SKIPPED, rank.rank, sentence, rank.frame)


def _has_repeated(rank: Rank, call: Record) -> bool:
    """Whether a rank has made a call again and again, as each step does."""
    made = [one for one in rank.records if one.name == call.name and one.ended]
    return len(made) > 1


def _absent(stall: Stall, rank: Rank) -> Verdict:
    cure = "" if is_of_step(stall.call) else f": {_CURE_OF_CALLS}"
    sentence = (
        f"{name_of(rank)} never entered {words_of(stall.call)}, for which "
        f"others wait since {clock(stall.call.enqueued)}{stay_of(rank)}{cure}"
    )
    return Verdict(Cause.SLOW_INPUT, rank.rank, sentence, rank.frame)


def _crossed(stall: Stall, elsewhere: list[Rank]) -> Verdict | None:
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
        f"{name_of(rank)} never entered {words_of(awaited)}, but waits in "
        f"{words_of(made)}{place(rank.frame)}: {how}{last_of(rank)}"
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
        return Cause.DIVERGED, (
            "let all ranks make both calls, in the same order, not under "
            "`if hvd.rank() == ...`"
        )
    expected: list[Key] = []
    for key in next_calls(before):
        if expected[:1] == [key]:
            break  # from the beginning again
        expected.append(key)
    if awaited.key not in expected or made.key not in expected:
        return Cause.SKIPPED, "it has left calls out"
    if expected.index(made.key) == expected.index(awaited.key) + 1:
        return Cause.SKIPPED, f"it has left {words_of(awaited)} out"
    return Cause.ORDER, "it makes its calls in another order"
