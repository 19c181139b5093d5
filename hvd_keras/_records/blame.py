"""Who is to blame for the end of a job: the one place that decides it.

Blame follows from how each rank has ended, and from the order in which they
began to. Of an error only the class in front counts, never its text. hvdrun
asks for its exit status, what it says at the end, and the verdict; so do
`hvd-doctor`, the start of MPI, and Spark.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class Tells(enum.Enum):
    """Whose fault an error is, by its class."""

    PROGRAM = "of the program that raised it"
    MACHINE = "of this rank, but a restart may mend it"
    ALL = "of all ranks, which raise it together"
    OTHERS = "of somebody else, but it may be the first to tell"
    EFFECT = "of somebody else, who has failed before"


_TELLS = {
    "InternalError": Tells.MACHINE,
    "MismatchError": Tells.ALL,
    "ProcessSetMismatchError": Tells.ALL,
    "JobEndedError": Tells.OTHERS,
    "JobError": Tells.OTHERS,  # Horovod's HorovodInternalError
    "KeyboardInterrupt": Tells.OTHERS,
    "ShutdownError": Tells.OTHERS,
    "StalledError": Tells.OTHERS,
    "tensorflow.InternalError": Tells.OTHERS,
    # A plain one tells of what rank 0 has failed to do for all.
    "HvdError": Tells.EFFECT,
    "PeerLostError": Tells.EFFECT,
    # TensorFlow's for a lost peer.
    "UnavailableError": Tells.EFFECT,
    "tensorflow.UnavailableError": Tells.EFFECT,
}


class _Grade(enum.IntEnum):
    """How likely a rank is the cause; the first of the lowest grade is."""

    CERTAIN = 0
    LIKELY = 1
    EFFECT = 2
    ENDED = 3  # by hvdrun: it may have done all its work


@dataclasses.dataclass(frozen=True)
class End:
    """How one rank has ended, or begins to."""

    rank: int
    error: str = ""  # that it has told, its class in front; "": none
    exit_status: int | None = None  # None: it runs, as far as one knows
    signal: str = ""  # that killed it
    was_ended: bool = False  # by hvdrun
    is_lost: bool = False  # with its host
    # Whether a collective had failed there before, for which others may be why.
    saw_failure: bool = False
    last_words: str = ""  # what it printed last, if that looks like an error


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of the end of a job."""

    # Of all ranks. Those that began to end come first, in that order.
    ends: Sequence[End]
    # By a signal to hvdrun, before any rank had failed.
    was_interrupted: bool = False
    interruption: str = ""  # the name of that signal, if it is known


@dataclasses.dataclass(frozen=True)
class Blame:
    """Who is to blame."""

    rank: int | None = None  # that is the likely cause; None: no rank failed
    is_certain: bool = False  # nothing else can have ended that rank
    # How all ranks have ended alike, so that none is at fault: the error, or
    # the exit status if there was none.
    shared_error: str = ""
    shared_status: int | None = None
    # The interruption, or what follows from it, has ended all ranks.
    is_interruption: bool = False


def blame(evidence: Evidence) -> Blame:
    """Returns who is to blame."""
    graded = [
        (grade, end.rank)
        for end in evidence.ends
        if (grade := _grade(end, evidence.was_interrupted)) is not None
    ]
    if not graded:
        return Blame()
    grade, rank = min(graded, key=lambda one: one[0])  # the first of them
    is_certain = grade == _Grade.CERTAIN
    shared_error = _shared_error(evidence.ends, is_certain=is_certain)
    shared_status = None if shared_error else _shared_status(evidence.ends)
    return Blame(
        rank,
        is_certain and not shared_error and shared_status is None,
        shared_error,
        shared_status,
        evidence.was_interrupted
        and not any(_disobeyed(end, evidence) for end in evidence.ends),
    )


def tells(error: str) -> Tells:
    """Returns whose fault an error is."""
    return _TELLS.get(class_of(error), Tells.PROGRAM)


def class_of(error: str) -> str:
    """Returns the class of an error; of another package, with its name.

    Args:
        error: A class, a colon and a text. Modules may go before the class.
    """
    name = error.partition(":")[0].partition(" ")[0]
    package, own = name.partition(".")[0], name.rpartition(".")[2]
    if package not in (own, "hvd_keras"):
        own = f"{package}.{own}"
    return own


def _grade(end: End, was_interrupted: bool) -> _Grade | None:
    if end.is_lost:
        return _Grade.CERTAIN
    if end.exit_status == 0 or (end.exit_status is None and not end.error):
        return None
    if end.error:
        told = tells(end.error)
        if told == Tells.EFFECT:
            return _Grade.EFFECT
        is_own = told in (Tells.PROGRAM, Tells.MACHINE)
    elif end.was_ended:
        return _Grade.ENDED
    else:
        is_own = True
    was_killed = end.signal and not end.error
    is_effect = end.saw_failure and not was_killed
    is_certain = is_own and not is_effect and not was_interrupted
    return _Grade.CERTAIN if is_certain else _Grade.LIKELY


def _shared_error(ends: Sequence[End], *, is_certain: bool) -> str:
    """Returns the one error that all ranks told; the killed may tell none."""
    errors = {
        end.error
        for end in ends
        if end.error or not (end.signal or end.was_ended)
    }
    error = errors.pop() if len(errors) == 1 else ""
    if tells(error) == Tells.ALL:
        return "" if is_certain else error
    # The program's own, or a warning that is one: all ranks must have told it.
    told = [end for end in ends if end.error]
    is_of_all = len(told) == len(ends) > 1 and tells(error) == Tells.PROGRAM
    return error if error and is_of_all else ""


def _shared_status(ends: Sequence[End]) -> int | None:
    """Returns the exit status with which all ranks have ended by themselves.

    With 1 Python ends for any error, such as the loss of a peer that has failed
    in `init()`. So then their last words must be the same, too.
    """
    if len(ends) < 2 or any(
        end.error or end.signal or end.was_ended or end.is_lost for end in ends
    ):
        return None
    statuses = {end.exit_status for end in ends}
    status = statuses.pop() if len(statuses) == 1 else None
    words = {end.last_words for end in ends}
    is_alike = len(words) == 1 and tells(*words) == Tells.PROGRAM and any(words)
    return None if status == 0 or (status == 1 and not is_alike) else status


def _disobeyed(end: End, evidence: Evidence) -> bool:
    """Whether something else than the interruption has ended a rank."""
    if end.error:
        return tells(end.error) in (Tells.PROGRAM, Tells.ALL)
    return end.signal not in ("", evidence.interruption)
