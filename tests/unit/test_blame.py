"""Who is to blame for the end of a job."""

from __future__ import annotations

import itertools

import pytest

from hvd_keras._records.blame import Blame, End, Evidence, Tells, blame, tells
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.run.job.outcome import Ends
from hvd_keras.run.ranks.rank import Rank

OWN = "ValueError: odd"
EFFECTS = ["PeerLostError: Rank 0 was lost.", "HvdError: Rank 0 could not."]
FIRST_TO_TELL = [
    "StalledError: Rank 0 did not come.",
    "ShutdownError: Rank 0 has left.",
    "KeyboardInterrupt",
]
MISMATCH = "MismatchError: All ranks must agree."


def of(*ends: End, **more: object) -> Blame:
    return blame(Evidence(ends, **more))  # type: ignore[arg-type]


def died(rank: int, signal: str = "SIGKILL") -> End:
    return End(rank, exit_status=137, signal=signal)


def raised(rank: int, error: str = OWN, *, saw_failure: bool = False) -> End:
    return End(rank, error, exit_status=1, saw_failure=saw_failure)


def went_on(rank: int) -> End:
    return End(rank)


def finished(rank: int) -> End:
    return End(rank, exit_status=0)


def ended(rank: int) -> End:
    return End(rank, exit_status=143, signal="SIGTERM", was_ended=True)


CAUSES = [
    died(1),
    raised(1),
    raised(1, "InternalError: no memory"),
    End(1, exit_status=3),
    End(1, exit_status=1, is_lost=True),
]


def test_a_job_that_does_well_blames_nobody() -> None:
    assert of() == Blame()
    assert of(went_on(0), finished(1)) == Blame()


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("effect", [*EFFECTS, *FIRST_TO_TELL])
def test_the_cause_is_blamed_in_any_order(cause: End, effect: str) -> None:
    others = [raised(0, effect), ended(2), finished(3)]
    for order in itertools.permutations([cause, *others]):
        found = of(*order)
        assert (found.rank, found.is_certain) == (1, True)
        assert not found.shared_error


@pytest.mark.parametrize("error", FIRST_TO_TELL)
def test_who_tells_first_of_others_goes_before_effects(error: str) -> None:
    effects = [raised(n, text) for n, text in enumerate(EFFECTS)]
    for order in itertools.permutations([*effects, raised(7, error)]):
        found = of(*order)
        assert (found.rank, found.is_certain) == (7, False)


def test_of_two_alike_the_first_is_blamed() -> None:
    assert of(raised(1), died(0)).rank == 1
    assert of(died(0), raised(1)).rank == 0
    assert of(raised(2, EFFECTS[0]), raised(1, EFFECTS[0])).rank == 2
    assert of(ended(2), ended(1)).rank == 2


def test_who_was_ended_is_blamed_last() -> None:
    assert of(ended(0), raised(1, EFFECTS[0])).rank == 1
    # It had failed by itself before.
    slow = End(0, OWN, exit_status=137, signal="SIGKILL", was_ended=True)
    assert of(raised(1, EFFECTS[0]), slow) == Blame(0, is_certain=True)


@pytest.mark.parametrize("end", [OWN, ""])
def test_after_a_failed_collective_others_may_be_why(end: str) -> None:
    first = End(0, end, exit_status=1, saw_failure=True)
    assert of(first, raised(1, EFFECTS[0])) == Blame(0, is_certain=False)
    assert of(first, died(1)) == Blame(1, is_certain=True)
    # A signal is no effect of a failed collective.
    killed = End(0, exit_status=137, signal="SIGKILL", saw_failure=True)
    assert of(killed) == Blame(0, is_certain=True)


def test_an_error_of_all_ranks_is_shared() -> None:
    same = [raised(0, MISMATCH), raised(1, MISMATCH)]
    assert of(*same) == Blame(0, shared_error=MISMATCH)
    # One that hvdrun had to end has told nothing.
    for killed in (ended(2), End(2, exit_status=1, was_ended=True)):
        assert of(*same, killed).shared_error == MISMATCH
    another = "MismatchError: another"
    slow = End(2, another, exit_status=137, signal="SIGKILL", was_ended=True)
    assert not of(*same, slow).shared_error
    died_of_it = died(2, "SIGINT")
    found = of(*same, died_of_it, was_interrupted=True, interruption="SIGINT")
    assert found.shared_error == MISMATCH
    assert not of(*same, finished(2)).shared_error
    assert not of(*same, raised(2, another)).shared_error
    # All raise it because one rank is lost.
    assert of(*same, died(2)) == Blame(2, is_certain=True)


def test_what_the_program_does_on_all_ranks_is_shared() -> None:
    assert of(raised(1), raised(0)) == Blame(1, shared_error=OWN)
    assert not of(raised(0)).shared_error  # the only rank
    assert not of(raised(0), raised(1), ended(2)).shared_error
    assert of(raised(0), raised(1, f"{OWN}er")) == Blame(0, is_certain=True)
    status = [End(0, exit_status=3), End(1, exit_status=3)]
    assert of(*status) == Blame(0, shared_status=3)
    assert of(status[0], End(1, exit_status=4)) == Blame(0, is_certain=True)
    assert of(*status, ended(2)) == Blame(0, is_certain=True)
    assert of(finished(0), finished(1)) == Blame()
    said = [End(rank, last_words=OWN, exit_status=1) for rank in range(2)]
    assert of(*said) == Blame(0, shared_status=1)
    for other in ("", f"{OWN}er"):
        last = End(2, last_words=other, exit_status=1)
        assert of(*said, last) == Blame(0, is_certain=True)
    lost = [End(rank, last_words=EFFECTS[0], exit_status=1) for rank in (0, 1)]
    assert of(*lost).shared_status is None


def test_an_interruption_is_no_failure() -> None:
    told = {"was_interrupted": True, "interruption": "SIGINT"}
    ranks = [
        raised(0, "KeyboardInterrupt"),
        died(1, "SIGINT"),
        raised(2, EFFECTS[0]),
    ]
    for order in itertools.permutations(ranks):
        found = of(*order, **told)
        assert found.is_interruption
        assert not found.is_certain
        assert found.rank != 2
    for other in (raised(3), died(3, "SIGTERM"), raised(3, MISMATCH)):
        assert not of(*ranks, other, **told).is_interruption
    lost = End(3, exit_status=1, is_lost=True)
    assert of(*ranks, lost, **told).rank == 3
    assert not of(*ranks).is_interruption


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        ("ValueError: PeerLostError", Tells.PROGRAM),
        ("PeerLostErrors: none", Tells.PROGRAM),
        ("other.PeerLostError: not ours", Tells.PROGRAM),
        ("", Tells.PROGRAM),
        ("PeerLostError", Tells.EFFECT),
        ("PeerLostError: Rank 1", Tells.EFFECT),
        ("StalledError (in thread T)", Tells.OTHERS),
        ("hvd_keras.ops._errors.PeerLostError: Rank 1", Tells.EFFECT),
        ("tensorflow.python.errors_impl.InternalError: x", Tells.OTHERS),
        ("InternalError: x", Tells.MACHINE),
        ("HvdError: x", Tells.EFFECT),
    ],
)
def test_the_class_in_front_tells_whose_fault_it_is(
    error: str, whose: Tells
) -> None:
    assert tells(error) == whose


@pytest.mark.parametrize(("status", "number"), [(139, 11), (3, None)])
def test_a_signal_does_not_hide_who_had_failed_before(
    status: int, number: int | None
) -> None:
    ranks = [Rank(0), Rank(1), Rank(2, exit_status=status, signal=number)]
    ends = Ends(ranks)
    ends.note_signal()  # Ctrl-C, when rank 2 has died
    told = "KeyboardInterrupt: ", "PeerLostError: Rank 2 was lost."
    for rank, text in zip(ranks, told, strict=False):
        ends.note(Report(ReportKind.FAILS, rank.rank, text))
        rank.exit_status = 1
    assert ends.blame().rank == 2
    assert ends.exit_status(ends.blame()) == status
