"""Runs tests/parallel in jobs of 2 ranks, some of it on 1, 3 and 4 too.

On 3 ranks rows and sets are uneven. Some run on several hosts, which are
namespaces of this machine. With --thorough all runs on 1 and 4 ranks.

Many files have one job, because TensorFlow takes longer to start than most
tests take; not all, because it gets slower with all that it has traced. Every
rank writes its results to a file. Here each file of tests is one test for each
number of ranks.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from network import ADDRESSES, Network, free_port

PARALLEL = pathlib.Path(__file__).parent / "parallel"
FILES = sorted(path.name for path in PARALLEL.glob("test_*.py"))
FILES_OF_A_JOB = 28
# What holds on 2 ranks rarely fails on these; without --thorough only some run.
QUICK: dict[int | str, set[str]] = {
    1: {
        "test_allreduce.py",
        "test_exact_means.py",
        "test_gradient_tape.py",
        "test_prediction.py",
        "test_settings.py",
    },
    4: {
        "test_alltoall.py",
        "test_broadcast.py",
        "test_mismatch.py",
        "test_process_set_registration.py",
        "test_process_sets.py",
    },
}
UNEVEN = {  # `True`: with --thorough only
    "test_exact_means.py": False,
    "test_gradients.py": False,
    "test_indexed_slices.py": False,
    "test_join.py": False,
    "test_op_matrix.py": False,
    "test_positions.py": True,
    "test_process_set_ops.py": False,
    "test_random_program.py": False,
    "test_reducescatter.py": False,
    "test_shard.py": True,
}
# On several hosts: files, or some of their tests where all take long. `True`:
# with --thorough only. Of the parameters only those run that are quick.
ON_HOSTS = {
    "2x2": {
        "test_join.py": False,
        "test_mismatch.py": False,
        "test_op_matrix.py": False,
        "test_process_sets.py": False,
        "test_keras_equality.py::test_gradients_can_be_summed_over_ranks": (
            False
        ),
        "test_metric_average.py::test_a_rank_without_samples_gets_the_values"
        "_of_all": False,
        "test_allgather.py": True,
        "test_allreduce.py": True,
        "test_alltoall.py": True,
        "test_barrier.py": True,
        "test_broadcast.py": True,
        "test_broadcast_callback.py::test_a_model_that_some_ranks_have_built"
        "_is_equal_after_fit": True,
        "test_checkpoints.py::test_a_backup_of_another_run_is_refused": True,
        "test_compression.py": True,
        "test_global_mean.py": True,
        "test_gradients.py": True,
        "test_grouped_allreduce.py": True,
        "test_indexed_slices.py": True,
        "test_objects.py": True,
        "test_process_set_ops.py": True,
        "test_process_set_registration.py::test_an_id_is_never_used_again": (
            True
        ),
        "test_reducescatter.py": True,
        "test_shard.py::test_a_loop_may_end_with_join": True,
        "test_stop_together.py::test_a_step_stops_all_ranks": True,
        "test_strategy.py::test_variables_but_not_seeds_start_as_on_rank_0": (
            True
        ),
        "test_xla_ops.py::test_ranks_with_and_without_xla_meet": True,
    },
    "3x1": {
        "test_alltoall.py": True,
        "test_join.py": True,
        "test_op_matrix.py": True,
        "test_process_set_ops.py": True,
        "test_random_program.py": True,
        "test_reducescatter.py": True,
    },
}


def case(*parameters: Any, part: int = 0, is_thorough: bool = False) -> Any:
    """Returns the parameters of a test; each job is run by one process.

    Args:
        *parameters: Those of the job, and a file of its tests.
        part: The number of the job among those with such parameters.
        is_thorough: Whether it runs with --thorough only.
    """
    job = "-".join(map(str, [*parameters[:-1], part]))
    marks = [pytest.mark.xdist_group(f"job-{job}")]
    return pytest.param(
        *parameters, marks=marks + [pytest.mark.thorough] * is_thorough
    )


def _part(ranks: int | str, file: str) -> int:
    """Returns which of the jobs on as many ranks runs a file."""
    part = FILES.index(file) // FILES_OF_A_JOB if file in FILES else 0
    if ranks in QUICK:
        return 0 if file in QUICK[ranks] else 1 + part
    return part if ranks == 2 else 0


CASES = [case(2, file, part=_part(2, file)) for file in FILES]
CASES += [
    case(n, file, part=_part(n, file), is_thorough=file not in quick)
    for n, quick in QUICK.items()
    for file in FILES
]
CASES += [
    case(3, file, is_thorough=is_thorough)
    for file, is_thorough in UNEVEN.items()
]
CASES += [
    case(ranks, tests, is_thorough=is_thorough)
    for ranks, all_tests in ON_HOSTS.items()
    for tests, is_thorough in all_tests.items()
]
DEADLINE_SECONDS = 1800  # on 2 cores, beside the other worker


class Job:
    """Runs files of tests on some ranks and holds their results.

    The job starts at once; its output goes to a file until `wait`.

    Args:
        ranks: The number of ranks; or of hosts and of ranks on each, as "2x2".
        files: Files of tests, or tests in them.
        directory: Gets output and results.
        thorough: Whether to run tests marked `thorough`.
        settings: Environment variables.
    """

    def __init__(
        self,
        ranks: int | str,
        files: list[str],
        directory: pathlib.Path,
        *,
        thorough: bool,
        **settings: str,
    ) -> None:
        pytest_command = [sys.executable, "-m", "pytest", "-q", "--tb=short"]
        pytest_command += ["-p", "no:cacheprovider"]
        pytest_command += ["--thorough"] * thorough
        pytest_command += files
        environment = {
            **os.environ,
            **settings,
            "HVD_STALL_SHUTDOWN_TIME_SECONDS": "40",
            "PARALLEL_REPORT_DIR": str(directory),
        }
        self._directory = directory
        self._deadline = time.monotonic() + DEADLINE_SECONDS
        self._network: Network | None = None
        hvdrun = [sys.executable, "-m", "hvd_keras.run", "-np"]
        if isinstance(ranks, int):
            self._num_ranks = ranks
            commands = [[*hvdrun, str(ranks), "--", *pytest_command]]
        else:
            num_hosts, per_host = map(int, ranks.split("x"))
            self._num_ranks = num_hosts * per_host
            self._network = Network(directory, num_hosts)
            environment["HVD_SECRET"] = secrets.token_hex(32)
            environment["SELECT_AS_RANKS"] = "2,4"
            hvdrun += [str(per_host), f"--nnodes={num_hosts}"]
            hvdrun += [f"--rdzv-endpoint={ADDRESSES[0]}:{free_port()}"]
            commands = [
                self._network.command(
                    host, *hvdrun, f"--node-rank={host}", "--", *pytest_command
                )
                for host in range(num_hosts)
            ]
        with (directory / "output").open("w") as output:
            self._processes = [
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for command in commands
            ]

    def wait(self) -> None:
        """Waits until the job ends, or ends it at its deadline."""
        try:
            self._wait(self._deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            # The launcher passes it on, and every rank prints its stacks.
            self._terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wait(60)
        finally:  # Ctrl-C, too, leaves nothing behind
            for process in self._processes:
                process.kill()
                process.wait()
            if self._network is not None:
                self._network.close()
        self.returncode = self._processes[0].returncode
        output = self._directory / "output"
        self.output = output.read_text(errors="replace")
        self.reports = [
            _read_reports(self._directory / f"rank_{rank}.jsonl")
            for rank in range(self._num_ranks)
        ]

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.wait(max(0.0, deadline - time.monotonic()))

    def _terminate(self) -> None:
        if self._network is None:
            self._processes[0].send_signal(signal.SIGTERM)
            return
        # What starts a command on a host passes no signals on.
        for pid in self._network.processes("--node-rank=0"):
            os.kill(pid, signal.SIGTERM)

    def slowest(self, number: int) -> list[str]:
        """Returns lines about the tests that took rank 0 longest."""
        timed = [r for r in self.reports[0] if "seconds" in r]
        timed.sort(key=lambda report: -report["seconds"])
        return [
            f"  {r['seconds']:.2f}s {r['file']}::{r['test']}"
            for r in timed[:number]
        ]

    def counts(self) -> str:
        """Says how many tests rank 0 has run and left out."""
        outcomes = collections.Counter(r["outcome"] for r in self.reports[0])
        return (
            f"{outcomes['passed']} passed, {outcomes['failed']} failed, "
            f"{outcomes['skipped']} skipped, {outcomes['deselected']} left out"
        )

    def failures(self, file: str) -> list[str]:
        """Returns what went wrong in `file`, on all ranks."""
        file = file.partition("::")[0]
        failures = []
        all_ended = True
        for rank, reports in enumerate(self.reports):
            of_file = [r for r in reports if r.get("file") == file]
            for report in of_file:
                if report["outcome"] == "failed":
                    failures.append(
                        f"rank {rank}: {report['test']}\n{report['text']}"
                    )
            ended = any(r["outcome"] == "finished" for r in reports)
            if not of_file or not ended:
                all_ended = False
                last = of_file[-1]["test"] if of_file else "none"
                failures.append(
                    f"rank {rank} did not finish the job (exit code "
                    f"{self.returncode}); its last test of {file}: {last}."
                )
        if not all_ended:
            end = self.output[-20_000:]
            failures.append(f"The end of the job's output:\n{end}")
        elif self.returncode != 0 and not self._has_failed_test():
            # A crash or an abort after the last test.
            failures.append(
                f"The tests passed, but the job ended with exit status "
                f"{self.returncode}:\n{self.output[-20_000:]}"
            )
        return failures

    def _has_failed_test(self) -> bool:
        return any(
            report["outcome"] == "failed"
            for reports in self.reports
            for report in reports
        )


def _read_reports(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


Key = tuple[int | str, int]  # ranks; the part of their files


class Jobs(dict[Key, Job]):
    """Holds the jobs with the requested files."""

    def __init__(
        self,
        files: dict[Key, list[str]],
        directory: pathlib.Path,
        *,
        thorough: bool,
    ) -> None:
        super().__init__()
        self._files = files
        self._directory = directory
        self._thorough = thorough

    def __missing__(self, key: Key) -> Job:
        ranks, part = key
        directory = self._directory / f"ranks_{ranks}_{part}"
        directory.mkdir(exist_ok=True)  # a start may have been skipped
        files = [f"{PARALLEL}/{file}" for file in self._files[key]]
        thorough = self._thorough and isinstance(ranks, int)
        self[key] = job = Job(ranks, files, directory, thorough=thorough)
        job.wait()
        return job


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    note_job: Callable[[str, Job], None],
) -> Iterator[Jobs]:
    selected: dict[Key, list[str]] = collections.defaultdict(list)
    for item in request.session.items:
        if item.module is request.module:
            parameters = item.callspec.params
            ranks, file = parameters["ranks"], parameters["file"]
            selected[ranks, _part(ranks, file)].append(file)
    jobs = Jobs(
        selected,
        tmp_path_factory.mktemp("jobs"),
        thorough=request.config.getoption("thorough"),
    )
    yield jobs
    for (ranks, part), job in jobs.items():
        note_job(f"tests/parallel, {ranks} ranks, part {part}", job)


@pytest.mark.parametrize(("ranks", "file"), CASES)
def test_parallel(jobs: Jobs, ranks: int | str, file: str) -> None:
    failures = jobs[ranks, _part(ranks, file)].failures(file)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
