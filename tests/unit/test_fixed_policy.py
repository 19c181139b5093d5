"""The policy of a job whose ranks all end when one fails."""

from __future__ import annotations

import signal

import pytest
from virtual_members import plan_of

from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.run.hosts.placement import of_this_host
from hvd_keras.run.job.fixed import Fixed
from hvd_keras.run.job.policy import HostSlots, Say, Signal, Start, Survey
from hvd_keras.run.spec import JobSpec, Output
from hvd_keras.run.usage import UsageError


def _begun(**options: object) -> Fixed:
    """A job of four ranks on two hosts, which has begun."""
    spec = JobSpec(["train"], grace=10.0, **options)  # type: ignore[arg-type]
    policy = Fixed(spec, plan_of({"a": 2, "b": 2}))
    policy.begin([HostSlots("a", 2, True), HostSlots("b", 2)], 0.0)
    return policy


def _exit(policy: Fixed, rank: int, status: int, now: float) -> None:
    policy.ranks[rank].exit_status = status
    policy.exited(rank, now)


def test_the_other_hosts_start_first() -> None:
    policy = _begun()
    starts = [one for one in policy.actions if isinstance(one, Start)]
    assert [(one.host, list(one.ranks)) for one in starts] == [
        ("b", [2, 3]),
        ("a", [0, 1]),
    ]
    assert [rank.host for rank in policy.ranks] == ["a", "a", "b", "b"]


def test_ranks_of_one_host_need_not_tell_where_they_are() -> None:
    policy = Fixed(JobSpec(["train"]), of_this_host(2))
    policy.begin([HostSlots("a", 2, True)], 0.0)
    assert [rank.host for rank in policy.ranks] == ["", ""]


def test_a_rank_that_is_shown_must_be_there() -> None:
    with pytest.raises(UsageError, match=r"must be in \[0, 4\). Received: 4"):
        _begun(output=Output(shown_ranks=[4]))


def test_the_grace_time_begins_when_the_first_that_fails_has_ended() -> None:
    policy = _begun()
    policy.actions.clear()
    policy.reported(Report(ReportKind.FAILS, 1, "ValueError: odd"), 100.0)
    assert list(policy.actions) == [Survey()]
    assert policy.next_deadline(100.0) == 120.0  # it may save its work
    policy.actions.clear()
    policy.reported(Report(ReportKind.FAILS, 0, "PeerLostError: 1"), 101.0)
    _exit(policy, 0, 1, 102.0)  # an effect: it changes nothing
    assert policy.next_deadline(102.0) == 120.0
    _exit(policy, 1, 1, 103.0)
    assert policy.next_deadline(103.0) == 113.0
    policy.step(112.9)
    assert not policy.actions
    for rank in (2, 3):
        policy.ranks[rank].pid = 50 + rank
    policy.step(113.0)
    assert list(policy.actions) == [
        Say("rank 2 (host b, pid 52) still runs after the grace time; it gets "
            "SIGTERM"),
        Say("rank 3 (host b, pid 53) still runs after the grace time; it gets "
            "SIGTERM"),
        Signal(signal.SIGTERM, [2, 3]),
        Signal(signal.SIGCONT, [2, 3]),
    ]  # fmt: skip
    policy.actions.clear()
    _exit(policy, 2, 143, 113.5)
    assert policy.next_deadline(113.5) == 116.0
    policy.step(116.0)
    assert Signal(signal.SIGKILL, [3]) in policy.actions
    assert policy.goes_on()
    _exit(policy, 3, 137, 116.1)
    assert not policy.goes_on()
    ending = policy.ending(seconds=16.1)
    assert (ending.exit_status, ending.blame.rank) == (1, 1)
    assert ending.text == (
        "rank 1 (host a) failed first: exit status 1; the job took 16.1 s"
    )
    assert ending.has_table
    assert ending.has_verdict


def test_a_rank_that_was_preempted_is_no_failure() -> None:
    policy = _begun()
    policy.actions.clear()
    told = Report(ReportKind.PREEMPTED, 3, "saved epoch 2")
    policy.reported(told, 0.0)
    assert not policy.actions
    for rank in range(4):
        _exit(policy, rank, 75 if rank == 3 else 1, 1.0)
    ending = policy.ending(1.0)
    assert ending.exit_status == 75
    assert ending.text == "saved epoch 2; run it again to go on"
    assert ending.blame.rank is None
    assert not ending.has_table


@pytest.mark.parametrize("has_failed", [False, True])
def test_an_interruption_ends_the_job_in_the_grace_time(
    has_failed: bool,
) -> None:
    policy = _begun()
    if has_failed:
        _exit(policy, 2, 3, 99.0)
    policy.interrupted(signal.SIGINT, 100.0)
    assert policy.next_deadline(100.0) == (109.0 if has_failed else 110.0)
    assert policy.ends.ran_at_signal == ({0, 1, 3} if has_failed else set())
    for rank in (0, 1, 3):
        policy.ranks[rank].signal = signal.SIGINT
        _exit(policy, rank, 130, 101.0)
    if not has_failed:
        _exit(policy, 2, 0, 101.0)
    ending = policy.ending(1.0)
    assert ending.exit_status == (3 if has_failed else 130)
    assert ending.text.startswith("rank 2" if has_failed else "interrupted")


def test_hosts_do_nothing_but_pass_signals_on() -> None:
    policy = _begun()
    policy.actions.clear()
    policy.host_was_lost("b", 0.0, may_run=True)
    policy.host_came("c", 2)
    assert not policy.actions
    assert policy.host_was_signalled("b", signal.SIGTERM, 0.0)
    assert not policy.takes_hosts()


def test_a_job_that_does_well_says_nothing() -> None:
    policy = _begun()
    policy.actions.clear()
    for rank in range(4):
        _exit(policy, rank, 0, 0.0)
    assert not policy.actions
    assert policy.next_deadline(0.0) is None
    assert policy.ending(1.0)[1:] == (0, "", False, False)
