"""Members of an elastic job die, leave and come; the others stay."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import jobs
import pytest
from elastic_jobs import PROGRAM, ElasticJob, Place, kill, program_with


def _pids(places: list[Place]) -> list[int]:
    return [place.pid for place in places]


@pytest.mark.parametrize("killed", [[1], [0], [0, 2]])
def test_survivors_go_on_in_the_same_processes(
    tmp_path: Path, killed: list[int]
) -> None:
    options = ["-np", "4", "--min-np", "2", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options) as job:
        before = job.wait_for_generation(1, 4)
        kill(*[before[rank] for rank in killed])
        after = job.wait_for_generation(2, 4 - len(killed))
        stay = [pid for i, pid in enumerate(_pids(before)) if i not in killed]
        assert _pids(after) == stay  # in the order of their old ranks
        assert [p.local_rank for p in after] == list(range(len(after)))
        assert job.end() == 0, job.text
        assert f"member {killed[0]} (pid " in job.text
        assert "was killed by SIGKILL" in job.text


def test_a_killed_member_is_replaced(tmp_path: Path) -> None:
    options = ["-np", "3", "--min-np", "1", "--restart-delay", "0"]
    with ElasticJob(tmp_path, *options) as job:
        before = job.wait_for_generation(1, 3)
        kill(before[0])
        grown = job.wait_for_size(3, after=1)
        assert _pids(grown[:2]) == _pids(before[1:])
        assert grown[2].member == 3
        # It has taken over the place of the killed one, and its GPU.
        assert [p.local_rank for p in grown] == [1, 2, 0]
        assert "restart 1 of 3 on host" in job.text
        assert "member 3 waits to join" in job.text
        assert job.end() == 0, job.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_makes_one_rank_leave_and_nobody_sees_an_error(
    tmp_path: Path, number: signal.Signals
) -> None:
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1") as job:
        before = job.wait_for_generation(1, 3)
        os.kill(before[0].pid, number)
        after = job.wait_for_generation(2, 2)
        assert _pids(after) == _pids(before[1:])
        assert job.end() == 0, job.text
        assert "member 0 leaves: it was told to" in job.text
        assert "lost:" not in job.text
        assert "restart" not in job.text


def test_a_preemption_notice_makes_ranks_leave(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    environ = {
        "HVD_PREEMPTION_FILE": str(notice),
        "HVD_PREEMPTION_POLL_SECONDS": "0.05",
    }
    options = ["-np", "2", "--min-np", "1"]
    with ElasticJob(tmp_path, *options, environ=environ) as job:
        job.wait_for_generation(1, 2)
        notice.touch()
        assert job.wait() == 75, job.text  # all have left
        assert "run it again to go on" in job.text
        assert "lost:" not in job.text


def test_sigterm_to_hvdrun_makes_all_leave(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1") as job:
        job.wait_for_generation(1, 2)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait() == 75, job.text
        assert "lost:" not in job.text


def test_a_member_that_dies_in_init_is_left_out(tmp_path: Path) -> None:
    first = """
        import os, signal
        from hvd_keras._job import startup
        def die(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ["HVD_MEMBER"] in "13":
            startup._init_core = die
    """
    command = program_with(tmp_path, first=first)
    options = ["-np", "4", "--min-np", "2", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        after = job.wait_for_generation(2, 2)
        assert [place.member for place in after] == [0, 2]
        assert job.end() == 0, job.text


def test_too_few_members_end_the_job(tmp_path: Path) -> None:
    options = ["-np", "3", "--min-np", "3", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options) as job:
        kill(job.wait_for_generation(1, 3)[1])
        assert job.wait() != 0
        assert "2 of at least 3 members (--min-np) are left" in job.text
        assert "JobEndedError" in job.text
        assert "and no others will come" in job.text


def test_survivors_wait_for_the_restart_that_they_need(tmp_path: Path) -> None:
    options = ["-np", "2", "--min-np", "2", "--restart-delay", "0.2"]
    with ElasticJob(tmp_path, *options) as job:
        before = job.wait_for_generation(1, 2)
        kill(before[0])
        after = job.wait_for_generation(2, 2)
        assert after[0].pid == before[1].pid
        assert job.end() == 0, job.text


def test_a_program_without_elastic_state_starts_again(tmp_path: Path) -> None:
    """All ranks fail with the one that dies, and all are started again."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, numpy, hvd_keras as hvd\n"
        "from hvd_keras import _core\n"
        "hvd.init()\n"
        "for step in range(3):\n"
        "    if os.environ['HVD_MEMBER'] == '1' and step == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    x = _core.allreduce('x', [numpy.ones(1)], 1)[0][0]\n"
        "print('sum', x, flush=True)\n"
    )
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "1",
               "--restart-delay", "0.3"]  # fmt: skip
    with ElasticJob(tmp_path, *options, program=[str(program)]) as job:
        assert job.wait() == 0, job.text
        assert job.text.count("sum 3.0") == 3
        assert "restart 1 of 1" in job.text


def test_a_stopped_member_is_killed_at_once(tmp_path: Path) -> None:
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options) as job:
        before = job.wait_for_generation(1, 3)
        os.kill(before[1].pid, signal.SIGSTOP)
        after = job.wait_for_generation(2, 2)
        assert _pids(after) == [before[0].pid, before[2].pid]
        assert job.end() == 0, job.text


def test_a_member_that_does_not_come_is_left_behind(tmp_path: Path) -> None:
    environ = {
        "HVD_KEEP_STOPPED": "true",
        "HVD_STALL_CHECK_TIME_SECONDS": "0.3",
        "HVD_STALL_SHUTDOWN_TIME_SECONDS": "0.5",
    }
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "0",
               "--start-timeout", "1"]  # fmt: skip
    with ElasticJob(tmp_path, *options, environ=environ) as job:
        before = job.wait_for_generation(1, 3)
        os.kill(before[1].pid, signal.SIGSTOP)
        after = job.wait_for_generation(2, 2)  # hvdrun kills the stopped one
        assert _pids(after) == [before[0].pid, before[2].pid]
        assert "generation has waited 0.3 s for member 1 (pid " in job.text
        assert "did not come within 1 s of the others" in job.text
        assert job.end() == 0, job.text


def test_waiting_for_enough_members_names_their_number(
    tmp_path: Path,
) -> None:
    environ = {"HVD_STALL_CHECK_TIME_SECONDS": "0.3"}
    options = ["-np", "3", "--min-np", "2", "--restart-delay", "1.5"]
    with ElasticJob(tmp_path, *options, environ=environ) as job:
        before = job.wait_for_generation(1, 3)
        kill(*before[1:])
        job.wait_for(
            "the next generation has waited 0.3 s for more members: 1 of at "
            "least 2 (--min-np) are there\n"
        )
        assert job.end() == 0, job.text


def test_an_error_after_the_others_have_finished_fails_the_job(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import hvd_keras as hvd\n"
        "hvd.init()\n"
        "rank = hvd.rank()\n"
        "hvd.shutdown()\n"
        "raise SystemExit(7 if rank == 1 else 0)\n"
    )
    options = ["-np", "2", "--min-np", "1", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options, program=[str(program)]) as job:
        assert job.wait() == 7, job.text


def test_a_newcomer_ends_when_the_others_have_finished(tmp_path: Path) -> None:
    first = """
        import os, time
        if int(os.environ["HVD_MEMBER"]) > 1:
            time.sleep(60)
    """
    command = program_with(tmp_path, first=first)
    options = ["-np", "2", "--min-np", "1", "--restart-delay", "0"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        kill(job.wait_for_generation(1, 2)[0])
        job.wait_for_generation(2, 1)
        assert job.end() == 0, job.text


def _busy_share(pid: int, seconds: float) -> float:
    """Returns in which part of some seconds a process ran or wanted to."""

    def busy_ns() -> int:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran) + int(waited)

    before, began = busy_ns(), time.monotonic_ns()
    time.sleep(seconds)
    return (busy_ns() - before) / (time.monotonic_ns() - began)


def test_hvdrun_sleeps_when_a_slot_is_left_over(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho localhost:3\n")
    script.chmod(0o755)
    options = ["-np", "2", "--min-np", "1", "--max-np", "2",
               "--restart-delay", "0.5",
               "--host-discovery-script", str(script)]  # fmt: skip
    with ElasticJob(tmp_path, *options) as job:
        kill(job.wait_for_generation(1, 2)[1])
        job.wait_for_size(2, after=1)  # in the third slot
        time.sleep(0.5)  # now the second one may be used as well
        assert _busy_share(job.pid, 2.0) < 0.5
        assert job.end() == 0, job.text


def test_hvdrun_sleeps_while_too_few_members_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, time, hvd_keras as hvd\n"
        "hvd.init()\n"
        "if hvd.rank() == 0:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    options = ["-np", "2", "--min-np", "2", "--restart-delay", "100",
               "--elastic-timeout", "0.5", "--grace", "2"]  # fmt: skip
    with ElasticJob(tmp_path, *options, program=[str(program)]) as job:
        job.wait_for("(--elastic-timeout)")
        assert _busy_share(job.pid, 1.5) < 0.5
        assert job.wait() != 0, job.text


def test_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    secret = {"HVD_SECRET": "5a" * 32}
    common = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}",
              "-np", "1", "--min-np", "2"]  # fmt: skip
    other = jobs.start(
        *common, "--node-rank", "1", "--",
        *(sys.executable, PROGRAM, str(tmp_path / "end")),
        environ=jobs.clean_environ(**secret),
    )  # fmt: skip
    options = [*common, "--node-rank", "0"]
    try:
        with ElasticJob(tmp_path, *options, environ=secret) as job:
            pids = _pids(job.wait_for_generation(1, 2))
            assert [pid for pid in pids if pid in jobs.ranks_of(other.pid)]
            assert [pid for pid in pids if pid in jobs.ranks_of(job.pid)]
            assert job.end() == 0, job.text
    finally:
        other.kill()
        other.communicate()


def test_status_shows_the_members_that_run(tmp_path: Path) -> None:
    options = ["-np", "2", "--min-np", "1", "--max-restarts", "0", "--status",
               "--status-seconds", "0.3"]  # fmt: skip
    with ElasticJob(tmp_path, *options) as job:
        kill(job.wait_for_generation(1, 2)[0])
        job.wait_for_generation(2, 1)
        seen = len(job.text)
        while "status at" not in job.text[seen:]:
            assert job.read(1.0)
        job.read(0.1)
        table = job.text[seen:].partition("status at")[2].splitlines()
        assert [line.split()[0] for line in table[1:3]] == ["rank", "1"]
        assert job.end() == 0, job.text


def test_process_sets_follow_the_number_of_ranks(tmp_path: Path) -> None:
    init = "hvd.init(process_sets=lambda size: [[0, size - 1]] * (size > 2))"
    before = """
        ends = hvd.process_set.with_ranks([0, hvd.size() - 1])
        print("is in set", ends.included(), flush=True)
    """
    command = program_with(tmp_path, init=init, before=before)
    options = ["-np", "4", "--min-np", "1", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        kill(job.wait_for_generation(1, 4)[1])
        kill(job.wait_for_generation(2, 3)[1])
        job.wait_for_generation(3, 2)
        assert job.end() == 0, job.text
        # Two ranks of two are the global set.
        assert job.text.count("is in set True") == 2 + 2 + 2
        assert job.text.count("is in set False") == 2 + 1
        assert "is in set None" not in job.text


def test_a_list_of_process_sets_must_fit(tmp_path: Path) -> None:
    command = program_with(tmp_path, init="hvd.init(process_sets=[[0, 2]])")
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        kill(job.wait_for_generation(1, 3)[0])
        assert job.wait() == 1, job.text
        assert "give `init` a function of the number of ranks" in job.text


def test_a_survey_is_of_the_present_ranks(tmp_path: Path) -> None:
    """The rank that does not come is named by its rank in this generation."""
    after = """
        if state.generation() == 2 and hvd.rank() == 1:
            time.sleep(60)
    """
    command = program_with(tmp_path, after=after)
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "0"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        kill(job.wait_for_generation(1, 3)[0])
        job.wait_for_generation(2, 2)
        time.sleep(2.2)  # what is shorter is no hang
        os.kill(job.pid, signal.SIGUSR2)
        job.wait_for("hvdrun: verdict: rank 1")


def test_nobody_waits_for_a_rank_that_fails_slowly(tmp_path: Path) -> None:
    after = """
        if state.generation() == 1 and hvd.rank() == 1:
            import atexit
            atexit.register(time.sleep, 60)
            raise ValueError("no")
    """
    command = program_with(tmp_path, after=after)
    options = ["-np", "3", "--min-np", "1", "--max-restarts", "0",
               "--grace", "1"]  # fmt: skip
    with ElasticJob(tmp_path, *options, program=command) as job:
        job.wait_for("generation 2 formed: 2 ranks, members 0, 2", 20)
        job.wait_for("member 1 (pid ", 5)
        job.wait_for("still runs after the grace time; it is killed", 5)
        assert job.end() == 0, job.text


def test_newcomers_know_their_likely_places(tmp_path: Path) -> None:
    first = """
        import os
        names = "RANK SIZE LOCAL_RANK".split()
        if os.environ.get("HVD_NEWCOMER") == "1":
            print("likely", *[os.environ["HVD_" + n] for n in names])
    """
    command = program_with(tmp_path, first=first)
    options = ["-np", "4", "--min-np", "1", "--restart-delay", "0.5"]
    with ElasticJob(tmp_path, *options, program=command) as job:
        ranks = job.wait_for_generation(1, 4)
        kill(ranks[0], ranks[1])
        grown = job.wait_for_size(4, after=1)
        assert {p.local_rank for p in grown} == {0, 1, 2, 3}
        # They may begin one after the other.
        assert re.search(r"\[4\] likely 2 [34] 0\n", job.text), job.text
        assert re.search(r"\[5\] likely [23] 4 1\n", job.text), job.text
        assert job.end() == 0, job.text


@pytest.mark.parametrize("who", ["all", "one"])
def test_an_error_of_the_program_is_not_tried_for_ever(
    tmp_path: Path, who: str
) -> None:
    condition = "True" if who == "all" else "hvd.rank() == 1"
    after = f"""
        if {condition}:
            raise ValueError("no such file")
    """
    command = program_with(tmp_path, after=after)
    options = ["-np", "2", "--min-np", "1", "--max-restarts", "99",
               "--restart-delay", "0", "--grace", "1"]  # fmt: skip
    with ElasticJob(tmp_path, *options, program=command) as job:
        job.wait_for("no others are started")
        if who == "one":  # the other one goes on
            assert "has repeated the error of an earlier one" in job.text
            assert job.end() == 0, job.text
        else:
            assert job.wait() == 1, job.text
        assert "Error: no such file" in job.text
