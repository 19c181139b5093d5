"""Runs tests/parallel in jobs of 1, 2 and 4 ranks: `pytest tests`.

The tests of the ops also run on 3 ranks, where rows and sets are uneven.

Each number of ranks has one job, because TensorFlow takes longer to start than
most tests take. Every rank writes its results to a file. Here each file of
tests is one test for each number of ranks.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PARALLEL = pathlib.Path(__file__).parent / "parallel"
NUM_RANKS = [1, 2, 4]
FILES = sorted(path.name for path in PARALLEL.glob("test_*.py"))
UNEVEN = [
    "test_exact_means.py",
    "test_gradients.py",
    "test_indexed_slices.py",
    "test_join.py",
    "test_op_matrix.py",
    "test_process_set_ops.py",
    "test_random_program.py",
    "test_reducescatter.py",
]
CASES = [(n, file) for n in NUM_RANKS for file in FILES] + [
    (3, file) for file in UNEVEN
]
DEADLINE_SECONDS = 1500


class Job:
    """Runs files of tests on some ranks and holds their results.

    The job starts at once; its output goes to a file until `wait`.

    Args:
        num_ranks: The number of ranks.
        files: The tests.
        directory: Gets output and results.
        thorough: Whether to run tests marked `thorough`.
        settings: Environment variables.
    """

    def __init__(
        self,
        num_ranks: int,
        files: list[pathlib.Path],
        directory: pathlib.Path,
        *,
        thorough: bool,
        **settings: str,
    ) -> None:
        pytest_command = [sys.executable, "-m", "pytest", "-q", "--tb=short"]
        pytest_command += ["-p", "no:cacheprovider"]
        pytest_command += ["--thorough"] * thorough
        pytest_command += map(str, files)
        launcher = [sys.executable, "-m", "hvd_keras.run", "-np"]
        environment = {
            **os.environ,
            **settings,
            "HVD_STALL_SHUTDOWN_TIME_SECONDS": "40",
            "PARALLEL_REPORT_DIR": str(directory),
        }
        self._num_ranks = num_ranks
        self._directory = directory
        self._deadline = time.monotonic() + DEADLINE_SECONDS
        with (directory / "output").open("w") as output:
            self._process = subprocess.Popen(
                [*launcher, str(num_ranks), "--", *pytest_command],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Waits until the job ends, or ends it at its deadline."""
        try:
            seconds = max(0.0, self._deadline - time.monotonic())
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            # The launcher passes it on, and every rank prints its stacks.
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.returncode = self._process.returncode
        output = self._directory / "output"
        self.output = output.read_text(errors="replace")
        self.reports = [
            _read_reports(self._directory / f"rank_{rank}.jsonl")
            for rank in range(self._num_ranks)
        ]

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


class Jobs(dict[int, Job]):
    """Holds one job for each number of ranks, with the requested files."""

    def __init__(
        self,
        files: dict[int, list[str]],
        directory: pathlib.Path,
        thorough: bool,
    ) -> None:
        super().__init__()
        self._files = files
        self._directory = directory
        self._thorough = thorough

    def start(self, num_ranks: int) -> Job:
        directory = self._directory / f"ranks_{num_ranks}"
        directory.mkdir()
        files = [PARALLEL / file for file in self._files[num_ranks]]
        return Job(num_ranks, files, directory, thorough=self._thorough)

    def __missing__(self, num_ranks: int) -> Job:
        self[num_ranks] = job = self.start(num_ranks)
        job.wait()
        return job


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    note_job: Callable[[str, Job], None],
) -> Iterator[Jobs]:
    selected: dict[int, list[str]] = collections.defaultdict(list)
    for item in request.session.items:
        if item.module is request.module:
            parameters = item.callspec.params
            selected[parameters["num_ranks"]].append(parameters["file"])
    thorough = request.config.getoption("thorough")
    jobs = Jobs(selected, tmp_path_factory.mktemp("jobs"), thorough)
    # The job of one rank leaves room for another.
    together = [n for n in (1, 3) if n in selected]
    started = {n: jobs.start(n) for n in together}
    for num_ranks, job in started.items():
        job.wait()
        jobs[num_ranks] = job
    yield jobs
    for num_ranks, job in sorted(jobs.items()):
        note_job(f"tests/parallel, {num_ranks} ranks", job)


@pytest.mark.parametrize(("num_ranks", "file"), CASES)
def test_parallel(jobs: Jobs, num_ranks: int, file: str) -> None:
    failures = jobs[num_ranks].failures(file)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
