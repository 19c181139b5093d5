"""hvdrun sets up ranks, refuses wrong commands and reports failures."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

from hvd_keras.run.ranks import environment

# ---- Environment ----


def test_ranks_get_their_place_and_one_secret() -> None:
    job = jobs.run_python(
        3,
        """
        import os
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"
        print(*[os.environ["HVD_" + name] for name in names.split()])
        print(os.environ["HVD_SECRET"], os.environ["HVD_RENDEZVOUS"])
        """,
    )
    assert job.status == 0, job.stderr
    secrets = set()
    for rank in range(3):
        place, secret = job.lines(rank)
        assert place == f"{rank} 3 {rank} 3 0 1"
        secrets.add(secret)
    (secret,) = secrets
    assert re.fullmatch(r"[0-9a-f]{64} unix:/.*", secret)
    assert secret[:64] not in job.stderr


def test_more_ranks_than_cores_get_a_remark() -> None:
    remark = "(more ranks than cores: they take turns), each with "
    cores = environment.num_cores()
    for more in (0, 1):
        job = jobs.run("-np", str(cores + more), "true")
        assert job.status == 0, job.stderr
        assert (remark in job.stderr.splitlines()[0]) == bool(more)


def test_tuning_flags_become_settings() -> None:
    job = jobs.run_python(
        1,
        """
        import hvd_keras
        hvd_keras.init()
        from hvd_keras._job import state
        print(state.config())
        """,
        "--fusion-threshold-mb=2",
        "--cycle-time-ms=1.5",
        "--cache-capacity=9",
        "--stall-check-warning-time-seconds=3",
        "--stall-check-shutdown-time-seconds=4",
        "--start-timeout=5",
        "--log-level=error",
    )
    assert job.status == 0, job.stderr
    (shown,) = job.lines(0)
    for part in (
        "fusion_threshold_bytes=2097152",
        "cycle_time_ms=1.5",
        "cache_capacity=9",
        "stall_warning_seconds=3.0",
        "stall_timeout_seconds=4.0",
        "start_timeout_seconds=5.0",
        "log_level='error'",
    ):
        assert part in shown


# ---- Command lines that cannot be obeyed ----


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-np", "0", "true"], 2, "`-np` must be in [1, "),
        (["-np", "100000", "true"], 2, "Received: 100000"),
        (["true"], 2, "`-np N` is missing"),
        (["-np", "2"], 2, "command is missing"),
        (["-np", "2", "no-such-command"], 127, "'no-such-command'"),
        (["-np", "2", "/etc/passwd"], 126, "executable"),
        (["-np", "2", "x.py"], 127, "Did you mean: python x.py?"),
        (["-np", "2", "pythn", "x.py"], 127, "Did you mean: python?"),
        (["-np", "3", "-H", "a:1,b:1", "true"], 2, "-np 3 for a:1, b:1"),
        (["-np", "2", "--hostfile", "h", "true"], 2, "`--hostfile`"),
        (["-np", "2", "--nnodes", "2", "true"], 2, "`--node-rank`"),
        (["-np", "2", "--show-ranks", "2", "true"], 2, "[0, 2)"),
        (["-np", "2", "--grace", "-1", "true"], 2, "`--grace`"),
        (["-np", "2", "--cycle-time-ms", "-1", "true"], 2, "HVD_CYCLE_TIME"),
    ],
)
def test_wrong_command_line_is_a_clear_error(
    arguments: list[str], status: int, text: str
) -> None:
    job = jobs.run(*arguments)
    assert job.status == status
    assert text in job.stderr
    assert "Traceback" not in job.stderr
    assert job.stdout == ""


def test_unknown_setting_is_one_error_before_any_rank_starts() -> None:
    job = jobs.run_python(2, "print('started')", HVD_CYCLE_TIEM="1")
    assert job.status == 2
    assert job.stderr.count("HVD_CYCLE_TIME") == 1
    assert job.stdout == ""


def test_hvdrun_as_a_rank_of_another_job_is_an_error() -> None:
    job = jobs.run_python(
        1,
        "",
        OMPI_COMM_WORLD_RANK="0",
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_LOCAL_RANK="0",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )
    assert job.status == 2
    assert "rank 0 of 2 of Open MPI" in job.stderr


@pytest.mark.parametrize("flag", ["-np", "--np", "-n", "--num-proc",
                                  "--nproc-per-node"])  # fmt: skip
def test_number_of_ranks_has_the_names_of_other_launchers(flag: str) -> None:
    job = jobs.run(flag, "2", "-H", "localhost:2", "echo", "-np", "7")
    assert job.status == 0
    assert sorted(job.stdout.splitlines()) == ["[0] -np 7", "[1] -np 7"]


def test_version_is_that_of_the_package() -> None:
    job = jobs.run("--version")
    assert job.status == 0
    assert re.fullmatch(r"hvd_keras \S+\n", job.stdout), job.stdout


def test_a_shell_may_complete_options() -> None:
    pytest.importorskip("argcomplete")
    line = "hvdrun --timel"
    script = (
        "import os, sys; os.dup2(1, 8)\n"
        "from hvd_keras.run.__main__ import main; main([])"
    )
    environ = jobs.clean_environ(
        _ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=str(len(line))
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert "--timeline" in done.stdout, done.stderr


def test_help_env_prints_the_settings() -> None:
    job = jobs.run("--help-env")
    assert job.status == 0
    assert "HVD_FUSION_THRESHOLD  (int, bytes; default " in job.stdout
    assert max(map(len, job.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("--reprot=x", "--report"), ("--num_proc", "--num-proc")],
)
def test_an_option_that_is_mistyped_gets_a_hint(wrong: str, meant: str) -> None:
    job = jobs.run(wrong, "2", "true")
    assert job.status == 2
    assert f"Did you mean `{meant}`?" in job.stderr


@pytest.mark.parametrize(
    "module", ["", "._observe.command", "._observe.trace", "._observe.report"]
)
def test_each_tool_says_its_version(module: str) -> None:
    code = f"import sys, hvd_keras{module or '.__main__'} as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
    )
    assert re.fullmatch(r"hvd_keras \d+\.\d+\S*\n", done.stdout)


@pytest.mark.thorough
def test_check_works_with_parts_missing() -> None:
    # -S leaves out site-packages, so there is no TensorFlow and no Keras.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hvd_keras.run", "--check", "-v"],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert re.search(r"^TensorFlow +NOT FOUND", done.stdout, re.MULTILINE)
    assert re.search(r"^Keras +NOT FOUND", done.stdout, re.MULTILINE)
    assert re.search(r"^Python +3\.", done.stdout, re.MULTILINE)
    assert re.search(r"^(CUDA driver|GPUs +none)", done.stdout, re.MULTILINE)
    assert "keras.callbacks.CallbackList: on_train_begin, " in done.stdout
    assert "Ready" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_check_tries_the_ops_of_its_own_package(tmp_path: Path) -> None:
    # As in a clone whose package was installed, but not built in place.
    sources = tmp_path / "hvd_keras"
    sources.mkdir()
    (sources / "__init__.py").write_text("raise ImportError('sources')")
    done = subprocess.run(
        [Path(sys.executable).with_name("hvdrun"), "--check"],
        cwd=tmp_path,
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert re.search(r"^TensorFlow ops +libhvd_tf", done.stdout, re.MULTILINE)


# ---- Failures ----


def test_first_failure_gives_the_status_and_the_table() -> None:
    job = jobs.run_python(
        3,
        """
        import os, sys, time
        if os.environ["HVD_RANK"] == "1":
            raise ValueError("no such luck")
        if os.environ["HVD_RANK"] == "2":
            time.sleep(0.3)
            sys.exit(5)
        """,
    )
    assert job.status == 1
    assert "rank 1 failed first" in job.stderr
    table = job.table()
    assert table[0][1:] == ["0"]
    assert table[1][1:] == ["1", "ValueError: no such luck"]
    assert table[2][1:] == ["5"]


def test_no_table_without_a_failure() -> None:
    job = jobs.run_python(2, "import hvd_keras; hvd_keras.init()")
    assert job.status == 0
    assert "rank  pid" not in job.stderr
    assert job.stderr.count("hvdrun: ") == 1


@pytest.mark.parametrize("options", [(), ("--min-np", "1")])
@pytest.mark.parametrize("joins", [True, False])
def test_a_job_that_nobody_joined_says_so(
    joins: bool, options: tuple[str, ...]
) -> None:
    code = "import hvd_keras as hvd\n" + "hvd.init()\n" * joins
    job = jobs.run_python(2, code, *options)
    assert job.status == 0, job.stderr
    word = "no rank has called `hvd.init()`: 2 processes ran the program"
    assert (word in job.stderr) == (not joins)
    assert ("hvdrun --distribute -np 2 ..." in job.stderr) == (not joins)
    assert "init()" not in jobs.run_python(1, "pass").stderr


@pytest.mark.parametrize("joins", [True, False])
def test_a_job_that_nobody_has_joined_for_long_says_so(joins: bool) -> None:
    code = "import time, hvd_keras\n" + "hvd_keras.init()\n" * joins
    launcher = (
        "import sys; from hvd_keras.run.job import job; job._JOIN_SECONDS = 6; "
        "from hvd_keras.run.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", launcher, "-np", "2", sys.executable, "-c"),
            f"{code}time.sleep(8)",
        ],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    word = "no rank has called `hvd.init()` for 6 s. If the script"
    assert (word in done.stderr) == (not joins)


def test_start_lines_and_warnings_are_no_last_error_line() -> None:
    job = jobs.run_python(
        2,
        """
        import os, sys, warnings
        import hvd_keras as hvd
        hvd.init()
        # Those of TensorFlow come after a first error, in order to be last.
        lines = [
            "2026-01-02 03:04:05.678901: I tensorflow/core/util/port.cc:153] "
            "oneDNN custom operations are on. You may see slightly different "
            "numerical results",
            "E0000 00:00:1764070000.318219 28507 cuda_dnn.cc:8310] Unable to "
            "register cuDNN factory: Attempting to register factory for plugin",
            "2026-01-02 03:04:05.678901: W tensorflow/a.cc:1] any warning",
            "To enable the following instructions: AVX2 FMA, in other "
            "operations, rebuild TensorFlow with the appropriate compiler "
            "flags.",
            "/a/b.py:74: UserWarning: careful",
            "  self._interrupted_warning()",
        ]
        print("disk full" * hvd.rank(), *lines, sep="\\n", file=sys.stderr)
        sys.stderr.flush()
        os._exit(3)
        """,
    )
    assert job.status == 3
    assert job.table()[1][2:] == ["disk full"]
    assert job.table()[0][2:] in ([], [""])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("tf.errors.InvalidArgumentError(None, None, 'x')", "tensorflow."),
        ("hvd.InvalidArgumentError('x')", ""),
    ],
)
def test_errors_of_tensorflow_name_no_page_of_ours(
    error: str, told: str
) -> None:
    pytest.importorskip("tensorflow")
    job = jobs.run_python(
        2,
        f"""
        import tensorflow as tf
        import hvd_keras as hvd
        hvd.init()
        raise {error}
        """,
        seconds=90,
    )
    assert job.status == 1
    for row in job.table().values():
        assert row[2:] == [f"{told}InvalidArgumentError: x"]
    assert ("docs/errors.md" in job.stderr) == (not told)


def test_death_by_signal_is_128_and_the_signal() -> None:
    job = jobs.run_python(
        2,
        """
        import os, signal, time
        if os.environ["HVD_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        "--grace=0.5",
    )
    assert job.status == 128 + signal.SIGKILL
    assert job.seconds < 8
    assert job.table()[0][1] == "SIGKILL"
    assert job.table()[1][1] == "SIGTERM by hvdrun"


def test_others_get_the_grace_time_to_fail_by_themselves() -> None:
    code = """
        import os, sys, time
        if os.environ["HVD_RANK"] == "0":
            sys.exit(3)
        time.sleep(1)
        raise RuntimeError("my own words")
        """
    job = jobs.run_python(2, code, "--grace=15")
    assert job.status == 3
    assert job.seconds < 10
    assert job.table()[1][1:] == ["1", "RuntimeError: my own words"]
    job = jobs.run_python(2, code, "--grace=0")
    assert job.status == 3
    assert "my own words" not in job.stderr


def test_rank_that_ignores_sigterm_is_killed() -> None:
    job = jobs.run_python(
        2,
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.3)
        if os.environ["HVD_RANK"] == "0":
            sys.exit(3)
        time.sleep(60)
        """,
        "--grace=0.2",
    )
    assert job.status == 3
    assert job.seconds < 10
    assert job.table()[1][1] == "SIGKILL by hvdrun"


@pytest.mark.parametrize("seconds", [1.5, 60])
def test_rank_that_fails_first_is_blamed_though_it_ends_slowly(
    seconds: float,
) -> None:
    job = jobs.run_python(
        2,
        f"""
        import atexit, time
        atexit.register(time.sleep, {seconds})
        import hvd_keras as hvd
        from hvd_keras import _core
        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("no such luck")
        _core.barrier("b")
        """,
        "--grace=1",
    )
    assert job.status == 1, job.stderr
    assert "rank 1 failed first" in job.stderr
    assert job.table()[1][2] == "ValueError: no such luck"
    if seconds < 2:
        assert job.table()[1][1] == "1"
    assert job.seconds < 10


def test_rank_whose_work_is_done_is_not_blamed_for_a_slow_end() -> None:
    job = jobs.run_python(
        2,
        """
        import atexit, time
        import hvd_keras as hvd
        from hvd_keras import _core
        hvd.init()
        if hvd.rank() == 0:
            atexit._run_exitfuncs()  # the exit has begun; libraries take long
            time.sleep(60)
        _core.barrier("b")
        """,
        "--grace=0.5",
    )
    assert job.status == 1, job.stderr
    assert "rank 1 failed first" in job.stderr
    assert job.table()[0][1] == "SIGTERM by hvdrun"


def test_rank_that_ends_well_and_early_ends_nothing() -> None:
    job = jobs.run_python(
        2,
        """
        import os, time
        if os.environ["HVD_RANK"] == "0":
            time.sleep(1)
            print("still here")
        """,
        "--grace=0",
        "--verbose",
    )
    assert job.status == 0
    assert job.lines(0) == ["still here"]
    assert re.search(r"rank 1 \(pid \d+\) exited with code 0", job.stderr)
