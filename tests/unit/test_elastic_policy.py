"""The policy of an elastic job, in a time that the test moves."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from virtual_elastic_job import Job
from virtual_members import get_in, heard

from hvd_keras._rendezvous.protocol import FrameType, ReportKind
from hvd_keras.config import Config
from hvd_keras.run.job.policy import EndHost, Signal, Start, StartHost

OWN = "ValueError: odd"
EFFECT = "PeerLostError: Rank 0 was lost."


def test_a_member_that_was_killed_is_started_again() -> None:
    job = Job({"a": 3}, 3)
    assert job.started() == [0, 1, 2]
    job.train(0, 1, 2)
    assert job.said() == ["generation 1 formed: 3 ranks, members 0, 1, 2"]
    job.wait(50.0)
    job.exit(1, killed=signal.SIGKILL)
    assert job.said() == [
        "member 1 (host a, pid 501) was killed by SIGKILL",
        "restart 1 of 3 on host a in 1 s",
    ]
    job.train(0, 2)  # nobody waits for the new one
    job.wait(0.9)
    assert job.started() == []
    job.wait(0.1)
    starts = [one for one in job.done if isinstance(one, Start)]
    # It knows a slot that nobody has, and its likely place.
    assert starts[0].place.newcomers == [(3, 2, 3, 1)]
    assert starts[0].place.members == (0, 1, 2, 3)
    assert job.started() == [3]
    job.come(3)
    assert "member 3 waits to join" in job.said()


def test_survivors_come_before_a_new_member_starts() -> None:
    """It would take part in the generation that they form."""
    job = Job({"a": 2}, 2, restart_delay=0.0)
    job.started()
    job.train(0, 1)
    assert job.said() == ["generation 1 formed: 2 ranks, members 0, 1"]
    job.exit(1, killed=signal.SIGKILL)
    assert job.started() == []
    job.come(0)
    assert job.started() == [2]


def test_members_that_die_together_are_one_restart() -> None:
    job = Job({"a": 3}, 3)
    job.started()
    job.train(0, 1, 2)
    job.exit(1, killed=signal.SIGKILL)
    job.exit(2, killed=signal.SIGKILL)
    restarts = [text for text in job.said() if text.startswith("restart")]
    assert restarts == ["restart 1 of 3 on host a in 1 s"]


@pytest.mark.parametrize("way", ["none trains", "not elastic", "newcomer"])
def test_a_new_member_waits_only_for_those_that_take_it_in(way: str) -> None:
    job = Job({"a": 2}, 2)
    job.started()
    for number in (1, 0):
        job.come(number)
    get_in(job.policy.generations, *job.peers.values())
    if way != "not elastic":
        job.tell(ReportKind.ELASTIC, 0)
    job.exit(1, killed=signal.SIGKILL)
    if way == "none trains":
        job.exit(0, killed=signal.SIGKILL)
        assert job.policy.goes_on()
    else:
        job.come(0)
    job.wait(1.0)
    starts = [one for one in job.done if isinstance(one, Start)]
    assert bool(starts[0].place.newcomers) == (way == "newcomer")


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"num_ranks": 2}, 2),
        ({"num_ranks": 2, "max_ranks": 3}, 3),
        ({"num_ranks": 2, "max_ranks": 3, "may_grow": True}, 3),
        ({"may_grow": True}, 6),
    ],
)
def test_a_job_grows_up_to_its_most_ranks(
    options: dict[str, Any], most: int
) -> None:
    job = Job({"a": 2}, **options)
    assert job.started() == [0, 1]
    job.train(0, 1)
    job.policy.host_came("b", 4)
    assert job.started() == list(range(2, most))


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_restarts_come_to_an_end(max_restarts: int) -> None:
    job = Job({"a": 2}, 2, max_restarts=max_restarts, min_ranks=2)
    job.started()
    job.train(0, 1)
    if max_restarts:
        job.exit(1, killed=signal.SIGKILL)
        job.wait(1.0)
        job.come(0)
        assert job.started() == [2]
        job.train(0, 2)
    job.wait(1000.0)
    job.said()
    job.exit(1 + max_restarts, killed=signal.SIGKILL)
    said = job.said()
    left = "no restarts are left (--max-restarts 1)"
    assert (left in said) == bool(max_restarts)
    assert said[-1] == (
        "the job ends: 1 of at least 2 members (--min-np) are left, and no "
        "others will come."
    )
    # Who does not hear of that gets the grace time.
    job.wait(13.0)
    assert job.killed() == [0]
    job.exit(0, killed=signal.SIGKILL)
    assert not job.policy.goes_on()
    ending = job.policy.ending(1.0)
    assert ending.exit_status == 128 + signal.SIGKILL
    assert ending.text.startswith(f"rank {1 + max_restarts} (host a) failed")
    assert ending.has_table


def test_too_few_members_end_the_job_after_the_elastic_timeout() -> None:
    job = Job({"a": 2, "b": 2}, min_ranks=3, timeout=50.0,
              blacklist_cooldown=(2.0, 4.0))  # fmt: skip
    job.started()
    job.train(0, 1, 2, 3)
    job.wait(5.0)
    job.lose("b", 2, 3)
    job.wait(2.0)
    assert StartHost("b", 2) in job.done  # its agent never comes
    job.said()
    job.wait(47.9)
    assert not [text for text in job.said() if "ends" in text]
    job.wait(0.1)
    assert job.said()[-1] == (
        "the job ends: 2 of at least 3 members (--min-np) are left, for 50 s "
        "(--elastic-timeout)."
    )


def test_members_that_have_started_but_not_come_are_not_counted() -> None:
    job = Job({"a": 2}, 2, min_ranks=2, timeout=20.0, restart_delay=0.0)
    job.started()
    job.train(0, 1)
    job.exit(1, killed=signal.SIGKILL)
    job.come(0)
    assert job.started() == [2]
    job.wait(20.0)
    assert job.said()[-1] == (
        "the job ends: 1 of at least 2 members (--min-np) have come, for 20 s "
        "(--elastic-timeout)."
    )


@pytest.mark.parametrize(
    ("come", "awaited"),
    [
        ([0], "members 1 (host a, pid 0), 2 (host a, pid 0)"),
        ([0, 2], "member 1 (host a, pid 0)"),
    ],
)
@pytest.mark.parametrize("is_disabled", [False, True])
def test_who_is_awaited_is_said(
    come: list[int], awaited: str, is_disabled: bool
) -> None:
    config = Config(stall_warning_seconds=7, stall_check_disable=is_disabled)
    job = Job({"a": 3}, config=config)
    job.started()
    job.train(0, 1, 2)
    for number in come:
        job.come(number)
    job.wait(6.9)
    job.said()
    job.wait(0.1)
    text = f"the next generation has waited 7 s for {awaited}"
    assert job.said() == ([] if is_disabled else [text])


@pytest.mark.parametrize("leaves", [False, True])
def test_who_hears_late_of_the_end_is_not_blamed(leaves: bool) -> None:
    job = Job({"a": 2}, 2, min_ranks=2)
    job.started()
    job.train(0, 1)
    job.tell(ReportKind.LEAVES, 0, "it must")
    if leaves:
        job.tell(ReportKind.LEAVES, 1, "it must")
    job.exit(0)
    job.wait(10.0)
    assert ("the job ends" in "\n".join(job.said())) != leaves
    job.exit(1, killed=0 if leaves else signal.SIGTERM)
    ending = job.policy.ending(1.0)
    assert ending.blame.rank is None
    assert ending.exit_status == (75 if leaves else 1)


def test_a_host_that_comes_again_gets_members() -> None:
    job = Job({"a": 1, "b": 2}, blacklist_cooldown=(5.0, 5.0))
    assert job.started() == [1, 2, 0]  # the other host first
    job.train(0, 1, 2)
    job.lose("b", 1, 2)
    job.train(0)
    job.wait(5.0)
    assert StartHost("b", 2) in job.done
    job.policy.host_came("b", 2)
    assert job.started() == [3, 4]
    assert "host b has come, with 2 slots" in job.said()
    assert job.policy.ranks[3].host == "b"
    job.policy.host_came("c", 1)
    assert "host c has come, with 1 slot" in job.said()
    job.policy.interrupted(signal.SIGTERM, job.now)
    job.policy.host_came("d", 1)
    assert job.said() == []


@pytest.mark.parametrize(
    ("options", "is_tried"),
    [
        ({}, False),
        ({"blacklist_cooldown": (2.0, 4.0)}, True),
        ({"host_discovery_script": "./names"}, False),  # it knows better
        (
            {
                "blacklist_cooldown": (2.0, 4.0),
                "host_discovery_script": "./names",
            },
            False,
        ),
    ],
)
def test_a_lost_host_is_tried_again_if_the_user_wants_that(
    options: dict[str, Any], is_tried: bool
) -> None:
    job = Job({"a": 1, "b": 1}, **options)
    job.started()
    job.train(0, 1)
    job.lose("b", 1)
    job.train(0)
    job.wait(60.0)
    assert (StartHost("b", 1) in job.done) is is_tried


def test_a_host_that_is_told_to_end_gives_its_members_back() -> None:
    job = Job({"a": 1, "b": 1})
    job.started()
    job.train(0, 1)
    assert not job.policy.host_was_signalled("b", signal.SIGTERM, job.now)
    assert "host b leaves: its agent got SIGTERM" in job.said()
    assert (FrameType.NEWS, b"\3") in heard(job.peers[1])
    job.tell(ReportKind.LEAVES, 1, "hvdrun asked it to")
    job.wait()
    assert EndHost("b") not in job.done
    job.exit(1)
    job.wait()
    assert EndHost("b") in job.done
    assert job.started() == []
    # A signal for a verdict is for the whole job.
    assert job.policy.host_was_signalled("a", signal.SIGUSR2, job.now)


def test_the_side_without_a_majority_ends() -> None:
    job = Job({"a": 1, "b": 2})
    job.started()
    job.train(0, 1, 2)
    job.lose("b", 1, 2, may_run=True)
    job.come(0)
    assert "the job ends: 2 of 3 members fell silent." in "\n".join(job.said())


def test_a_dead_member_counts_for_the_side_of_its_host() -> None:
    """The core stops the other side, so that of hvdrun must go on."""
    job = Job({"a": 2, "b": 2}, max_restarts=0)
    job.started()
    job.train(0, 1, 2, 3)
    job.exit(1, killed=signal.SIGKILL)
    job.lose("b", 2, 3, may_run=True)
    job.train(0)


def test_a_dead_member_of_a_silent_host_counts_for_the_other_side() -> None:
    """The core of that host goes on with half of the ranks and rank 0."""
    job = Job({"a": 2, "b": 2, "c": 1}, max_restarts=0)
    job.started()
    job.train(0, 1, 2, 3, 4)
    job.exit(2, killed=signal.SIGKILL)
    job.lose("b", 3, may_run=True)
    job.lose("c", 4, may_run=True)
    job.come(0)
    job.come(1)
    assert "the job ends: 3 of 5 members fell silent." in "\n".join(job.said())


def test_a_silent_host_is_lost_with_all_its_members_at_once() -> None:
    """Otherwise the generation would form when some of them are lost."""
    job = Job({"a": 2, "b": 3})
    job.started()
    job.train(0, 1, 2, 3, 4)
    for number in (0, 1, 4):
        job.come(number)
    job.lose("b", 2, 3, 4, may_run=True)
    said = "\n".join(job.said())
    assert "generation 2 formed" not in said
    assert "the job ends: 3 of 5 members fell silent." in said


def test_a_member_that_fails_slowly_is_killed() -> None:
    job = Job({"a": 2}, 2)
    job.started()
    job.train(0, 1)
    job.tell(ReportKind.FAILS, 1, OWN)
    job.train(0)  # it is not awaited
    job.wait(19.9)
    assert job.killed() == []
    job.wait(0.1)
    assert job.killed() == [1]
    assert "still runs after the grace time; it is killed" in job.said()[-1]


def test_members_that_do_not_come_again_are_killed() -> None:
    job = Job({"a": 3}, 3)
    job.started()
    job.train(0, 1, 2)
    job.exit(2, killed=signal.SIGKILL)
    job.come(0)
    seconds = Config().start_timeout_seconds
    job.wait(seconds - 0.1)
    assert job.killed() == []
    job.wait(0.1)
    assert job.killed() == [1]
    assert "(HVD_START_TIMEOUT); it is killed" in "\n".join(job.said())


def test_an_error_of_the_program_that_comes_again_is_not_mended() -> None:
    job = Job({"a": 2}, 2, restart_delay=0.0)
    job.started()
    job.train(0, 1)
    job.exit(1, 1, error=OWN)
    assert f"member 1 (host a, pid 501) exited with code 1: {OWN}" in job.said()
    job.come(0)
    assert job.started() == [2]
    job.train(0, 2)
    job.exit(2, 1, error=OWN)
    text = "member 2 has repeated the error of an earlier one"
    assert f"{text}; no others are started" in job.said()
    job.train(0)
    job.wait(100.0)
    assert job.started() == []
    job.exit(0)
    assert job.policy.ending(1.0).exit_status == 0  # it has finished


def test_all_have_failed_by_themselves() -> None:
    job = Job({"a": 2}, 2)
    job.started()
    job.train(0, 1)
    job.exit(0, 1, error=OWN)
    job.exit(1, 1, error=OWN)
    assert any("by their own errors" in text for text in job.said())
    assert not job.policy.goes_on()
    assert job.policy.ending(1.0).exit_status == 1


def test_an_effect_is_no_error_of_the_program() -> None:
    job = Job({"a": 2}, 2)
    job.started()
    job.train(0, 1)
    job.exit(0, 1, error=EFFECT)
    job.exit(1, 1, error=EFFECT)
    job.wait(1.0)
    assert job.started() == [2, 3]


@pytest.mark.parametrize(
    ("factor", "min_ranks", "evicts"),
    [(None, 1, False), (1.5, 2, True), (1.5, 3, False)],
)
def test_a_straggler_leaves_for_a_while_if_the_user_wants_that(
    factor: float | None, min_ranks: int, evicts: bool
) -> None:
    job = Job({"a": 3}, 3, straggler_factor=factor, min_ranks=min_ranks)
    job.started()
    job.train(0, 1, 2)
    job.said()
    job.tell(ReportKind.STRAGGLER, 1, "was waited for 9 s")
    job.tell(ReportKind.STRAGGLER, 3, "nobody")
    text = "member 1 (rank 1) was waited for 9 s"
    if not evicts:
        assert job.said() == [text]
        return
    assert job.said() == [f"{text}; it has to leave (--evict-stragglers)"]
    job.tell(ReportKind.LEAVES, 1, "it must")
    job.exit(1)
    job.train(0, 2)
    job.wait(59.9)
    assert job.started() == []
    job.wait(0.1)
    assert job.started() == [3]


def test_when_a_member_has_finished_newcomers_are_killed() -> None:
    job = Job({"a": 3}, 3, min_ranks=2)
    job.started()
    job.train(0, 1, 2)
    job.exit(2, killed=signal.SIGKILL)
    job.train(0, 1)
    job.wait(1.0)
    assert job.started() == [3]
    job.exit(0)
    assert not job.policy.takes_hosts()
    assert job.killed() == [3]
    job.exit(3, killed=signal.SIGKILL)
    assert job.policy.goes_on()
    job.wait(1000.0)  # one is enough now
    assert not job.policy.generations.why_ended
    job.exit(1)
    assert not job.policy.goes_on()
    assert job.policy.ending(1.0)[1:] == (0, "", False, False)


@pytest.mark.parametrize(
    ("way", "killed", "status"),
    [("killed", 9, 0), ("fails", 0, 1), ("is lost", 0, 0), ("leaves", 0, 0)],
)
def test_a_job_that_finishes_may_have_lost_members(
    way: str, killed: int, status: int
) -> None:
    job = Job({"a": 1, "b": 1}, max_restarts=0)
    job.started()
    job.train(0, 1)
    job.policy.ranks[1].is_lost = way == "is lost"
    if way == "leaves":
        job.tell(ReportKind.LEAVES, 1, "it must")
    job.exit(1, 0 if way == "leaves" else 1, killed=killed)
    job.exit(0)
    assert not job.policy.goes_on()
    ending = job.policy.ending(1.0)
    assert ending.exit_status == status
    assert ending.blame.rank == (1 if status else None)


def test_a_job_whose_members_all_leave_is_to_be_run_again() -> None:
    job = Job({"a": 2}, 2)
    job.started()
    job.train(0, 1)
    for number in (0, 1):
        job.tell(ReportKind.LEAVES, number, "preempted")
        job.exit(number)
    assert not job.policy.goes_on()
    ending = job.policy.ending(1.0)
    assert ending.exit_status == Config().requeue_exit_code
    assert ending.text == "all members have left; run it again to go on"
    assert not ending.has_table


def test_an_interruption_starts_no_more() -> None:
    job = Job({"a": 2}, 2)
    job.started()
    job.train(0, 1)
    job.policy.interrupted(signal.SIGTERM, job.now)
    job.exit(0, killed=signal.SIGTERM)
    job.wait(10.0)
    assert job.started() == []
    assert Signal(signal.SIGTERM, [1]) in job.done
    job.exit(1, killed=signal.SIGTERM)
    assert not job.policy.goes_on()
    assert job.policy.ending(1.0).text == "ended by SIGTERM"


def test_training_that_begins_anew_is_said() -> None:
    job = Job({"a": 1}, 1)
    job.started()
    job.train(0)
    assert job.said() == ["generation 1 formed: 1 rank, member 0"]
    job.tell(ReportKind.BEGINS, 0)
    assert job.said() == []
    job.tell(ReportKind.BEGINS, 0)
    assert "training begins anew" in job.said()[0]
