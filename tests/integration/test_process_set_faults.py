"""If a rank dies, fails or leaves, calls in other process sets fail too.

Ranks 0 and 1 are a set, ranks 2 and 3 another, and each rank has its own set.
Rank 1 goes. Within a second all pending and later calls fail, in every set. If
rank 1 left in peace, only calls in its own sets fail.
"""

from __future__ import annotations

import textwrap

import jobs
import pytest

pytest.importorskip("hvd_keras._core")

_COMMON = """
import os, pathlib, signal, sys, threading, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras._job import registration

def total(name, process_set, value=1.0):
    array = np.full(3, value, np.float32)
    process_set_id = process_set.process_set_id
    (result,) = _core.allreduce(name, [array], 1, process_set_id=process_set_id)
    return float(result[0])

def fail(name, process_set):
    "Calls until it fails; returns the error."
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            total(name, process_set)
        except hvd.HvdError as error:
            return error

def is_gone(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"

def is_as_before(num_files, num_threads):
    "A thread that was joined is listed for some time yet."
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if (
            len(os.listdir("/proc/self/fd")) <= num_files
            and len(os.listdir("/proc/self/task")) <= num_threads
        ):
            return True
        time.sleep(0.01)
    return False

def show(what, error):
    # In one piece: there are other threads.
    os.write(1, f"{what} {type(error).__name__} {error}\\n".encode())

hvd.init(process_sets="dynamic")
rank = hvd.rank()
pairs = [hvd.add_process_set(ranks) for ranks in ([0, 1], [2, 3])]
single = [hvd.add_process_set([r]) for r in range(4)][rank]
pair = pairs[rank // 2]
(pids,) = _core.allgather("pids", [np.array([os.getpid()])])
victim = int(pids[1])
"""


def _run(code: str, *options: str, **environ: str) -> jobs.Outcome:
    code = _COMMON + textwrap.dedent(code)
    return jobs.run_python(4, code, "--grace", "10", *options, **environ)


_GO = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "os._exit(5)",
    "exception": "raise ValueError('boom on purpose')",
}
_TEXT = {
    "SIGKILL": "rank 1 (pid {pid}) died",
    "exit": "rank 1 (pid {pid}) died",
    "exception": "rank 1 (pid {pid}) left the job: ValueError: boom on purpose",
}


@pytest.mark.parametrize("how", _GO)
def test_a_death_ends_waiting_calls_in_every_set(how: str) -> None:
    job = _run(
        f"""
        total("ready", hvd.global_process_set)
        if rank == 1:
            time.sleep(0.3)
            {_GO[how]}
        # Rank 0 waits for rank 1, which dies; rank 2 for rank 3, which is late.
        if rank == 3:
            while not is_gone(victim):
                time.sleep(0.001)
            begin = time.monotonic()
        else:
            threading.Thread(
                target=lambda: show("pending", fail("pending", pair))
            ).start()
            while not is_gone(victim):
                time.sleep(0.001)
            begin = time.monotonic()
        os.write(1, b"victim %d\\n" % victim)
        for name, one in (
            ("own", single), ("all", hvd.global_process_set), ("pair", pair)
        ):
            show(name, fail(name, one))
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
        print("seconds", time.monotonic() - begin)
        hvd.shutdown()
        """
    )
    for rank in (0, 2, 3):
        seen = dict(line.split(" ", 1) for line in job.lines(rank))
        text = _TEXT[how].format(pid=seen["victim"])
        names = ["own", "all", "pair", *(["pending"] if rank != 3 else [])]
        for name in names:
            assert seen.get(name, "").startswith("PeerLostError"), (
                f"{name}\n{job.stdout}{job.stderr}"
            )
            assert f"allreduce '{name}'" in seen[name]
            assert text in seen[name]
        assert float(seen["seconds"]) < 1.0, job.stdout


def test_other_sets_go_on_after_a_rank_has_left_in_peace() -> None:
    job = _run(
        """
        total("ready", hvd.global_process_set)
        if rank == 1:
            hvd.shutdown()
            sys.exit(0)
        show("single", None)
        if rank == 0:
            show("pair", fail("x", pair))
        while not is_gone(victim):
            time.sleep(0.001)
        for i in range(50):
            assert total("own", single) == 1
            if rank > 1:
                assert total("x", pair) == 2
        show("all", fail("all", hvd.global_process_set))
        hvd.shutdown()
        """
    )
    for rank in (0, 2, 3):
        seen = dict(line.split(" ", 1) for line in job.lines(rank))
        assert "PeerLostError" in seen["all"], job.stdout + job.stderr
        assert "left the job: shutdown() was called" in seen["all"]
        assert ("pair" in seen) == (rank == 0)
    assert "left the job: shutdown() was called" in job.stdout
    assert job.status == 0, job.stderr


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_death_while_a_set_is_made_registers_nothing(when: str) -> None:
    job = _run(
        f"""
        before = _core.process_set_ids()
        num_files = len(os.listdir("/proc/self/fd"))
        num_threads = len(os.listdir("/proc/self/task"))
        if rank == 1:
            def die(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            if {when == "before"}:
                die()
            # After all have told what they want, before it is done.
            registration.add_to_core = die
        one = hvd.ProcessSet([0, 1, 2])
        try:
            hvd.add_process_set(one)
        except hvd.PeerLostError as error:
            show("add", error)
        assert one.process_set_id is None
        assert _core.process_set_ids() == before
        assert is_as_before(num_files, num_threads)
        try:
            hvd.remove_process_set(pair)
        except hvd.PeerLostError as error:
            show("remove", error)
        print("good")
        hvd.shutdown()
        """
    )
    for rank in (0, 2, 3):
        lines = job.lines(rank)
        assert lines[-1] == "good", job.stdout + job.stderr
        assert lines[0].startswith("add PeerLostError")
        assert "rank 1 (pid" in lines[0]
        assert lines[1].startswith("remove PeerLostError")


def test_a_stall_in_a_set_is_an_error_of_that_set_alone() -> None:
    job = _run(
        """
        if rank == 2:
            thread = threading.Thread(
                target=lambda: show("pair", fail("absent", pair))
            )
            thread.start()
        for i in range(5):
            assert total("all", hvd.global_process_set) == 4
        if rank == 2:
            thread.join()
        if rank > 1:
            # The late rank gets the error of its own call.
            if rank == 3:
                time.sleep(1.5)
                show("late", fail("absent", pair))
            assert total("again", pair) == 2
        hvd.shutdown()
        """,
        HVD_STALL_CHECK_TIME_SECONDS="0.3",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="1",
    )
    assert job.status == 0, job.stderr + job.stdout
    for rank, name in ((2, "pair"), (3, "late")):
        (line,) = job.lines(rank)
        assert line.startswith(f"{name} StalledError")
        assert "rank 2 waits, rank 3 has not come" in line


def test_a_rank_that_does_not_add_the_set_is_named() -> None:
    job = _run(
        """
        if rank == 2:
            time.sleep(2)
        else:
            try:
                hvd.add_process_set([0, 2])
            except hvd.StalledError as error:
                show("add", error)
            assert 7 not in _core.process_set_ids()
        if rank == 2:
            try:
                hvd.add_process_set([0, 2])
            except hvd.StalledError as error:
                show("add", error)
        one = hvd.add_process_set([0, 2])
        if one.included():
            assert total("x", one) == 2
        hvd.shutdown()
        """,
        HVD_STALL_CHECK_TIME_SECONDS="0.3",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="1",
    )
    assert job.status == 0, job.stderr + job.stdout
    for rank in range(4):
        (line,) = job.lines(rank)
        assert "rank 2 has not come within 1 s" in line


def test_a_call_on_the_wrong_set_is_a_mismatch_on_both_sides() -> None:
    job = _run(
        """
        # Rank 3 alone has mistaken the set.
        one = pair if rank == 3 else hvd.global_process_set
        try:
            total("x", one)
        except hvd.MismatchError as error:
            show("x", error)
        assert total("after", hvd.global_process_set) == 4
        assert total("x", hvd.global_process_set) == 4
        assert total("x", pair) == 2
        total("end", hvd.global_process_set)
        hvd.shutdown()
        """,
        HVD_STALL_CHECK_TIME_SECONDS="0.3",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="20",
    )
    assert job.status == 0, job.stderr + job.stdout
    for rank in range(4):
        (line,) = job.lines(rank)
        assert line.startswith("x MismatchError"), line
        assert "rank 3" in line
        assert "process set 2" in line
        assert "process set 0" in line
    assert job.seconds < 10
