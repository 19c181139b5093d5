"""Ranks leave a job without harm to the others, who are told why."""

from __future__ import annotations

import jobs
import pytest

pytest.importorskip("hvd_keras._core")


def test_leaving_without_shutdown_is_fine_when_nobody_waits() -> None:
    job = jobs.run_core(
        2,
        """
        hvd.init()
        assert total("x") == 2
        if rank == 0:
            time.sleep(0.5)
            print("end")
        """,
    )
    assert job.status == 0, job.stderr
    assert job.lines(0) == ["end"]


@pytest.mark.timed
@pytest.mark.parametrize(
    ("how", "reason", "status"),
    [
        ("sys.exit(0)", "its script ended without this call", 1),
        ("sys.exit(7)", "its script ended without this call", 7),
        ("raise ValueError('odd batch')", "ValueError: odd batch", 1),
        ("hvd.shutdown(); time.sleep(1); sys.exit(0)", "shutdown()", 1),
    ],
)
def test_peers_are_told_why_a_rank_left(
    how: str, reason: str, status: int
) -> None:
    job = jobs.run_core(
        2,
        f"""
        hvd.init()
        total("x")
        if rank == 1:
            {how}
        started = time.monotonic()
        try:
            total("y")
        except hvd.PeerLostError as error:
            assert time.monotonic() - started < 2
            print(error)
            raise
        """,
    )
    assert job.status == status, job.stderr
    (message,) = job.lines(0)
    assert "rank 1" in message
    assert reason in message
    assert job.seconds < 10


def test_rank_with_the_exception_counts_as_the_first_to_fail() -> None:
    # The rank with the exception ends later than its peers.
    job = jobs.run_core(
        2,
        """
        import atexit
        hvd.init()
        if rank == 1:
            atexit.register(time.sleep, 1)
            raise ValueError("slow end")
        total("x")
        """,
    )
    assert job.status == 1
    assert "rank 1 failed first" in job.stderr
    assert job.table()[1][2] == "ValueError: slow end"


def test_exit_does_not_wait_for_calls_in_flight() -> None:
    job = jobs.run_core(
        2,
        """
        hvd.init()
        total("x")
        def wait():
            try:
                total("never")
            except hvd.HvdError as error:
                print(type(error).__name__, flush=True)
        thread = threading.Thread(target=wait, daemon=rank == 0)
        if rank == 1:
            thread.start()
            time.sleep(0.3)
            raise ValueError("end")
        time.sleep(1.5)
        """,
    )
    assert job.status == 1
    assert job.lines(1) == ["ShutdownError"]
    assert job.seconds < 10


def test_shutdown_ends_calls_that_wait() -> None:
    job = jobs.run_core(
        2,
        """
        hvd.init()
        if rank == 0:
            thread = threading.Thread(target=total, args=("never",))
            threading.excepthook = lambda args: print(args.exc_type.__name__)
            thread.start()
            time.sleep(0.3)
            hvd.shutdown()
            thread.join(5)
            assert not thread.is_alive()
        time.sleep(0.5)
        """,
    )
    assert job.status == 0, job.stderr
    assert job.lines(0) == ["ShutdownError"]


def test_forked_child_is_no_rank_and_ends_quietly() -> None:
    job = jobs.run_core(
        2,
        """
        hvd.init()
        total("x")
        pid = os.fork()
        if pid == 0:
            assert not hvd.is_initialized()
            try:
                hvd.rank()
            except hvd.NotInitializedError as error:
                print("child:", error)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(total("y"))
        """,
    )
    assert job.status == 0, job.stderr
    for rank in range(2):
        message, value = job.lines(rank)
        assert "in the process that called `init()`" in message
        assert value == "2.0"


def test_child_process_cannot_take_its_parents_place() -> None:
    job = jobs.run_core(
        2,
        """
        hvd.init()
        total("x")
        if rank == 0:
            import subprocess
            code = "import hvd_keras; hvd_keras.init()"
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True
            )
            assert done.returncode == 1
            print(done.stderr.splitlines()[-1])
        print(total("y"))
        """,
    )
    assert job.status == 0, job.stderr
    message, value = job.lines(0)
    assert "LaunchError: Rank 0 is there already" in message
    assert value == "2.0"


def test_exception_hooks_of_the_user_are_called() -> None:
    job = jobs.run_core(
        1,
        """
        sys.excepthook = lambda kind, value, trace: print("mine:", value)
        hvd.init()
        raise ValueError("x")
        """,
    )
    assert job.status == 1
    assert job.lines(0) == ["mine: x"]
