"""Real ranks join and leave a job, without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import jobs
import pytest
from rendezvous_server import SECRET, Served

pytest.importorskip("hvd_keras._core")


def test_init_shutdown_and_init_again() -> None:
    job = jobs.run_core(
        3,
        """
        from hvd_keras._job import state
        for generation in range(1, 6):
            assert not hvd.is_initialized()
            hvd.init()
            hvd.init()
            assert state.generation() == generation
            assert hvd.is_initialized()
            assert (hvd.rank(), hvd.size()) == (rank, 3)
            assert (hvd.local_rank(), hvd.local_size()) == (rank, 3)
            assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
            assert total("x", rank) == 3
            assert hvd.stats()["num_requests"] == 1
            hvd.shutdown()
            hvd.shutdown()
        assert "tensorflow" not in sys.modules
        print("good")
        """,
    )
    assert job.status == 0, job.stderr
    assert [job.lines(r) for r in range(3)] == [["good"]] * 3
    # Each start prints one line, on rank 0 alone.
    assert job.stderr.count("size 3 on one host") == 5
    assert "[1]" not in job.stderr


def test_one_rank_needs_no_launcher() -> None:
    code = """
import hvd_keras as hvd
try:
    hvd.size()
except hvd.NotInitializedError as error:
    print(error)
hvd.init()
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size())
hvd.shutdown()
hvd.init()
from hvd_keras._job import state
print(state.generation())
hvd.shutdown()
try:
    hvd.rank()
except hvd.NotInitializedError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=jobs.clean_environ(HVD_LOG_LEVEL="warning"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    before, numbers, generation, after = done.stdout.splitlines()
    assert "`init()` must be called before `size()`" in before
    assert numbers == "0 1 0 1"
    assert generation == "2"
    assert "`init()` must be called before `rank()`" in after
    assert done.stderr == ""


def test_a_limit_of_processes_is_named() -> None:
    code = """
import os, resource, sys
import hvd_keras as hvd
hvd.init()
hvd.shutdown()
sys.path.clear()  # the other user may not enter these folders
if os.getuid() == 0:  # the limit does not hold for root
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    hvd.init()
except hvd.InternalError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=jobs.clean_environ(OPENBLAS_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "number of processes limited? See `ulimit -u`" in done.stdout, (
        done.stderr
    )


def test_ranks_without_hvdrun_find_each_other() -> None:
    code = """
import os
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
for _ in range(2):
    hvd.init()
    print(_core.allreduce("x", [np.ones(1)], 1)[0][0], hvd.rank())
    hvd.shutdown()
"""
    ranks = []
    for rank in ("1", "0"):
        environ = jobs.clean_environ(
            RANK=rank,
            WORLD_SIZE="2",
            LOCAL_RANK=rank,
            LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="localhost",
            MASTER_PORT=str(os.getpid()),
            HVD_START_TIMEOUT="20",
        )
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        time.sleep(0.3)
    for process, rank in zip(ranks, "10", strict=True):
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
        assert output.count(f"2.0 {rank}\n") == 2, output
    assert "ranks from torchrun" in output


def test_newcomer_and_survivor_meet_in_one_generation(
    served_pair: Served,
) -> None:
    code = """
import sys
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras._job import state
for _ in range(int(sys.argv[1])):
    sys.stdin.readline()
    hvd.init()
    total = _core.allreduce("x", [np.ones(1)], 1)[0][0]
    hvd.shutdown()
    print(state.generation(), total, flush=True)
"""

    def start(rank: int, num_generations: int) -> subprocess.Popen[str]:
        environ = jobs.clean_environ(
            HVD_RANK=str(rank),
            HVD_SIZE="2",
            HVD_LOCAL_RANK=str(rank),
            HVD_LOCAL_SIZE="2",
            HVD_RENDEZVOUS=f"unix:{served_pair.path}",
            HVD_SECRET=SECRET.hex(),
            HVD_START_TIMEOUT="20",
        )
        return subprocess.Popen(
            [sys.executable, "-c", code, str(num_generations)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def meet(*processes: subprocess.Popen[str]) -> list[str]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        lines = []
        for process in processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        return lines

    with start(0, 2) as survivor:
        with start(1, 1) as first:
            assert meet(survivor, first) == ["1 2.0\n"] * 2
        served_pair.rank_exited(1, "exited with code 0")
        served_pair.rank_started(1)
        with start(1, 1) as newcomer:
            assert meet(survivor, newcomer) == ["2 2.0\n"] * 2
    assert survivor.returncode == newcomer.returncode == 0


# ---- Starting together, or not at all ----


def test_settings_that_differ_are_an_error_on_all_ranks() -> None:
    job = jobs.run_core(
        3,
        """
        if rank == 2:
            os.environ["HVD_FUSION_THRESHOLD"] = "5"
        try:
            hvd.init()
        except hvd.MismatchError as error:
            print(error)
        assert not hvd.is_initialized()
        os.environ.pop("HVD_FUSION_THRESHOLD", None)
        hvd.init()
        print(total("x"))
        """,
    )
    assert job.status == 0, job.stderr
    for rank in range(3):
        message, value = job.lines(rank)
        assert "HVD_FUSION_THRESHOLD" in message
        assert "134217728 on rank 0, 5 on rank 2" in message
        assert value == "3.0"


def test_libraries_of_other_versions_are_refused_on_all_ranks() -> None:
    job = jobs.run_core(
        3,
        """
        import pathlib, tempfile, types
        def check():
            try:
                hvd.init()
            except hvd.MismatchError as error:
                print(error)
            else:
                hvd.shutdown()
                print("equal")
        folder = tempfile.TemporaryDirectory()
        if rank == 2:
            info = pathlib.Path(folder.name) / "keras-9.8.7.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Name: keras\\nVersion: 9.8.7")
            sys.path.insert(0, folder.name)
        check()
        from hvd_keras._common import version
        if rank == 2:
            sys.path.remove(folder.name)
        version.installed.cache_clear()
        check()
        # One that is loaded may come from a source tree.
        if rank > 0:
            sys.modules["torch"] = types.ModuleType("torch")
            sys.modules["torch"].__version__ = f"1.{rank}"
        check()
        """,
    )
    assert job.status == 0, job.stderr
    for rank in range(3):
        installed, equal, loaded = job.lines(rank)
        assert "versions of Keras. Received: " in installed
        assert "on rank 0, 9.8.7 on rank 2" in installed
        assert equal == "equal"
        assert "versions of torch" in loaded
        assert "1.1 on rank 1, 1.2 on rank 2" in loaded


@pytest.mark.timed
def test_rank_that_dies_before_init_is_named_at_once() -> None:
    job = jobs.run_core(
        3,
        """
        if rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), 9)
        started = time.monotonic()
        try:
            hvd.init()
        except hvd.PeerLostError as error:
            assert time.monotonic() - started < 4
            print(error)
        """,
    )
    assert job.status == 128 + 9
    for rank in (0, 2):
        (message,) = job.lines(rank)
        assert "Rank 1 (pid" in message
        assert "was killed by SIGKILL before the job was up" in message


def test_rank_that_ends_well_without_init_is_named_too() -> None:
    job = jobs.run_core(
        2,
        """
        if rank == 1:
            sys.exit(0)
        hvd.init()
        """,
    )
    assert job.status == 1
    message = job.table()[0][2]
    assert "PeerLostError: Rank 1" in message
    assert "exited with code 0" in message


def test_rank_that_does_not_come_is_noticed_and_then_named() -> None:
    job = jobs.run_core(
        3,
        """
        if rank == 1:
            time.sleep(60)
        try:
            hvd.init()
        except hvd.StalledError as error:
            print(error)
            sys.exit(4)
        """,
        "--grace=0",
        "--start-timeout=1.5",
        "--stall-check-warning-time-seconds=0.5",
    )
    assert job.status == 4
    assert job.seconds < 15
    assert "Missing ranks: 1; waiting ranks: 0, 2" in job.stdout
    assert "has waited" in job.stderr
    assert "Missing ranks: 1" in job.stderr


def test_core_that_does_not_start_on_one_rank_is_an_error_on_all() -> None:
    job = jobs.run_core(
        2,
        """
        if rank == 1:
            from hvd_keras._job import startup
            original = startup._init_core
            def fail(*arguments):
                raise hvd.InternalError("no room on this rank")
            startup._init_core = fail
        try:
            hvd.init()
        except hvd.InternalError as error:
            print(error)
        assert not _core.is_initialized()
        if rank == 1:
            startup._init_core = original
        hvd.init()
        print(total("x"))
        """,
    )
    assert job.status == 0, job.stderr
    assert job.lines(0) == [
        "Rank 1 did not start: no room on this rank",
        "2.0",
    ]
    assert job.lines(1) == ["no room on this rank", "2.0"]


def test_wrong_setting_on_one_rank_ends_the_start_of_all() -> None:
    job = jobs.run_core(
        2,
        """
        if rank == 1:
            os.environ["HVD_CYCLE_TIME"] = "soon"
        hvd.init()
        """,
    )
    assert job.status == 1
    assert "rank 1 failed first" in job.stderr
    assert "`HVD_CYCLE_TIME` must be" in job.table()[1][2]
    assert "PeerLostError: Rank 1" in job.table()[0][2]
