"""`hvdrun --verify`: two jobs of the same script, and what they differ in.

The first job has the ranks that are asked for, the second one process. Both
record; a Python process with NumPy compares. If rounding may explain what it
finds, more jobs measure rounding: one process whose gradients are nudged.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hvd_keras._common import kept_files
from hvd_keras._common.horovod_site import python_path
from hvd_keras.run.hosts import planning
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.ranks.environment import SITE
from hvd_keras.run.ranks.guard import guarded_folder
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.usage import UsageError

# What the comparison ends with if it needs one more job.
_NEEDS_NUDGED = 3

# Runs a job, and returns its exit status.
RunJob = Callable[[JobSpec, dict[str, str], Plan], int]


def run(
    spec: JobSpec,
    environ: dict[str, str],
    plan: Plan,
    run_job: RunJob,
    *,
    num_steps: int,
    is_json: bool,
) -> int:
    """Runs both jobs and prints the result.

    Args:
        spec: The job.
        environ: That of the ranks.
        plan: Which hosts get how many ranks.
        run_job: Runs each of them.
        num_steps: How many steps to compare.
        is_json: Whether to print the result as JSON.

    Returns:
        0 if they are equal, 1 if they differ, 2 if they were not compared.

    Raises:
        UsageError: Such a job cannot be compared.
    """
    size = plan.num_ranks
    _check(spec, plan, num_steps)
    with guarded_folder("hvdrun-verify-", _undo) as folder:
        environ = {
            **environ,
            "HVD_VERIFY": folder,
            "HVD_VERIFY_STEPS": str(num_steps),
            "PYTHONPATH": python_path(environ, SITE),
        }
        failed = []
        run_job = _leaving_files(run_job)
        _say(f"{size} ranks", is_json=is_json)
        if run_job(spec, environ, plan):
            failed.append(f"{size} ranks")
        output = dataclasses.replace(spec.output, shown_ranks=())
        alone = dataclasses.replace(spec, num_ranks=1, output=output)
        _say("one process", is_json=is_json)
        environ["HVD_VERIFY_RANKS"] = str(size)
        plan_alone = planning.plan(alone, environ)
        if run_job(alone, environ, plan_alone):
            failed.append("one process")
        command = [sys.executable, "-m", "hvd_keras._verify.compare", folder]
        if is_json:
            command.append("--json")
        for what in failed:
            command += ["--failed", what]
        sys.stdout.flush()
        number = 0
        while (status := subprocess.run(command).returncode) == _NEEDS_NUDGED:
            number += 1
            _say("one process, to measure what rounding does", is_json=is_json)
            environ["HVD_VERIFY_NUDGE"] = str(number)
            run_job(alone, environ, plan_alone)
            sys.stdout.flush()
            # A job that could not begin has measured nothing.
            Path(folder, f"nudged{number}.jsonl").touch()
        return status


def _leaving_files(run_job: RunJob) -> RunJob:
    """Lets a job undo what its script has done to files."""

    def run(spec: JobSpec, environ: dict[str, str], plan: Plan) -> int:
        folder = environ["HVD_VERIFY"]
        # It stays if a copy cannot be given back.
        kept = tempfile.mkdtemp(prefix="hvdrun-kept-")
        Path(folder, "kept").symlink_to(kept)
        try:
            return run_job(spec, environ, plan)
        finally:
            _undo(folder)

    return run


def _undo(folder: str) -> None:
    """Undoes what the last job has done to files, if it is not undone."""
    link = Path(folder, "kept")
    if not link.is_symlink():
        return
    kept = link.resolve()
    for text in kept_files.give_back(kept):
        print(f"hvdrun: verify: {text}.", file=sys.stderr)
    if not any(kept.glob("*.data")):
        shutil.rmtree(kept, ignore_errors=True)
    link.unlink()


def _check(spec: JobSpec, plan: Plan, num_steps: int) -> None:
    if spec.elastic is not None:
        raise UsageError(
            "`--verify` needs a fixed number of ranks. Received: an elastic "
            "job (--min-np)."
        )
    if not plan.is_of_one_host or plan.way == "hosts":
        raise UsageError(
            "`--verify` runs on this host alone. Received: several hosts. "
            "Leave the list of hosts out; a few ranks show what many do."
        )
    if (plan.num_ranks or 0) < 2:
        raise UsageError(
            "`--verify` compares two ranks or more with one process. "
            f"Received: {plan.num_ranks} ranks."
        )
    if num_steps < 2:
        raise UsageError(
            f"`--verify-steps` must be 2 or more. Received: {num_steps}."
        )


def _say(what: str, *, is_json: bool) -> None:
    if not is_json:
        print(f"hvdrun: verify: the script on {what}", file=sys.stderr)
