"""How a process takes part in an elastic job: members die, leave and come.

The functions may be called in any job. In one that is not elastic, nothing
changes and nobody needs to leave. Call them in the main thread.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable

from hvd_keras import _rendezvous
from hvd_keras._job import preemption, state
from hvd_keras._rendezvous import Rendezvous
from hvd_keras._rendezvous.protocol import News, ReportKind
from hvd_keras.config import read_setting
from hvd_keras.exceptions import HvdError


@dataclasses.dataclass
class _Own:
    """What this process remembers, from one membership to the next."""

    connection: Rendezvous | None = None  # to hvdrun, while in a generation
    watch: preemption.Watch | None = None
    has_told: bool = False  # that this rank must leave
    has_told_elastic: bool = False  # see `announce_elastic`
    has_state: bool = False  # see `note_state`
    is_waiting: bool = False  # see `is_waiting`
    has_waited: bool = False
    # A generation, and that of its traces.
    kept_traces: tuple[int, int] | None = None
    rejoin: Callable[[], None] | None = None


_own = _Own()


def is_elastic() -> bool:
    """Whether `hvdrun --min-np` has started this process."""
    return bool(read_setting(os.environ, "HVD_ELASTIC"))


def is_waiting() -> bool:
    """Whether this process is not in the job yet, although `init()` was called.

    hvdrun started it while the job was running. It makes itself ready, alone,
    and others do not wait for it. Its `rank()` and `size()` are likely ones.
    `rejoin()` joins the job.
    """
    return _own.is_waiting


def trace_generation() -> int:
    """Returns the generation in which the programs of now were traced.

    It is the generation of now unless `keep_traces` was called in it.
    """
    kept = _own.kept_traces
    if kept is not None and kept[0] == state.generation():
        return kept[1]
    return state.generation()


def keep_traces(generation: int) -> None:
    """Lets this process, as all ranks, use what another generation traced.

    Args:
        generation: What `trace_generation` said then on this rank.
    """
    _own.kept_traces = (state.generation(), generation)


def name_suffix() -> str:
    """Returns what tells names in programs of one generation from another's.

    It is empty in an elastic job: there a program may serve in many
    generations, and on ranks that have traced it alone.
    """
    generation = state.generation()
    return "" if is_elastic() or generation <= 1 else f"@{generation}"


def is_change_due() -> bool:
    """Whether the members should call `rejoin()` soon.

    Newcomers wait, or a member must leave. It costs a system call. For a moment
    it may differ by rank.
    """
    return is_elastic() and (_has_notice() or _news() != News(0))


def must_leave() -> bool:
    """Whether this rank was told to leave, and then soon ends.

    From the first call on, SIGTERM and SIGUSR1 tell it so, instead of ending
    the process; a second signal ends it. So do HVD_PREEMPTION_FILE and
    HVD_PREEMPTION_COMMAND, and hvdrun if it gives up the host.
    """
    return is_elastic() and (_has_notice() or News.MUST_LEAVE in _news())


def announce_elastic() -> None:
    """Tells hvdrun that this process goes on when the members change.

    From then on new processes make themselves ready alone, and join when they
    call `rejoin()`. Before that, and if nobody says so, they join in `init()`.
    """
    if not _own.has_told_elastic and is_elastic():
        _own.has_told_elastic = _report(ReportKind.ELASTIC)


def note_state(*, is_first: bool) -> None:
    """Notes that this process has the state of the training.

    hvdrun hears of a rank 0 that begins without that of others. If others have
    trained before, their work is lost.

    Args:
        is_first: Whether it begins as the program has made it.
    """
    job = state.job()
    is_new = is_first and not _own.has_state and is_elastic()
    if is_new and job is not None and job.topology.rank == 0:
        _report(ReportKind.BEGINS)
    _own.has_state = True


def report_straggler(rank: int, text: str) -> None:
    """Tells hvdrun that the others wait for a rank, and how long."""
    _report(ReportKind.STRAGGLER, text, rank=rank)


def announce_leave(reason: str) -> None:
    """Tells hvdrun that this member leaves on purpose.

    It is no failure, it is not started again, and the others do not wait for
    it. Afterwards the rank calls `shutdown()` and exits with status 0.

    Args:
        reason: Why, in a few words.
    """
    _report(ReportKind.LEAVES, reason)


def rejoin() -> None:
    """Leaves the generation and joins the next one; the rank may change.

    What is pending fails. It is `shutdown()` and then `init()` with the
    arguments of the last `init()`.

    Raises:
        PeerLostError: This side of a network may not go on, or too few members
            are left.
        NotInitializedError: `init()` was never called.
    """
    if _own.rejoin is None:
        raise state.not_initialized("rejoin")
    _own.rejoin()


# ---- For basics.py and startup.py ----


def set_rejoin(call: Callable[[], None]) -> None:
    """Says how to leave the job and join it again."""
    _own.rejoin = call


def begin_waiting() -> bool:
    """Whether `init()` shall not join the job yet; asked by each `init()`."""
    is_newcomer = read_setting(os.environ, "HVD_NEWCOMER")
    _own.is_waiting = is_elastic() and is_newcomer and not _own.has_waited
    _own.has_waited |= _own.is_waiting
    return _own.is_waiting


def follow(connection: Rendezvous) -> None:
    """Hears of changes over the connection of the generation that begins."""
    hang_up()
    _own.connection = connection


def hang_up() -> None:
    """Hears no more of changes."""
    if _own.connection is not None:
        _own.connection.hang_up()
        _own.connection = None


def _news() -> News:
    if _own.connection is None:
        return News(0)
    try:
        return _own.connection.news()
    except HvdError:  # hvdrun is gone, or this generation has failed
        hang_up()
        return News(0)


def _has_notice() -> bool:
    """Whether this process was told to leave, by other ways than hvdrun."""
    if _own.watch is None:
        _own.watch = preemption.Watch(
            lambda: True, (signal.SIGTERM, signal.SIGUSR1)
        )
        _own.watch.begin()
    if not _own.watch.has_come:
        return False
    _tell_once()
    return True


def _tell_once() -> None:
    """Has the others hear that a change is due."""
    if not _own.has_told:
        _own.has_told = _report(ReportKind.LEAVES_SOON)


def _report(kind: ReportKind, text: str = "", rank: int | None = None) -> bool:
    """Tells hvdrun something; returns whether there is a job."""
    job = state.job()
    if job is None or job.topology.member is None:
        return False
    _rendezvous.tell(
        job.topology, job.config, state.generation(), kind, text, rank=rank
    )
    return True
