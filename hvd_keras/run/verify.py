"""`hvdrun --verify`: two jobs of the same script, and what they differ in.

The first job has the ranks that are asked for, the second one process. Both
record; a Python process with NumPy compares.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hvd_keras.run import arguments
from hvd_keras.run.arguments import Options
from hvd_keras.run.guard import guarded_folder
from hvd_keras.run.placement import Plan
from hvd_keras.run.usage import UsageError

_SITE = str(Path(__file__).parents[1] / "_verify" / "_site")

# Runs a job, and returns its exit status.
RunJob = Callable[[Options, dict[str, str], Plan], int]


def run(
    options: Options, environ: dict[str, str], plan: Plan, run_job: RunJob
) -> int:
    """Runs both jobs and prints the result.

    Args:
        options: The command line.
        environ: That of the ranks.
        plan: Which hosts get how many ranks.
        run_job: Runs each of them.

    Returns:
        0 if they are equal, 1 if they differ, 2 if they were not compared.

    Raises:
        UsageError: Such a job cannot be compared.
    """
    size = plan.num_ranks
    _check(options, plan)
    with guarded_folder("hvdrun-verify-") as folder:
        environ = {
            **environ,
            "HVD_VERIFY": folder,
            "HVD_VERIFY_STEPS": str(options.verify_steps),
            "PYTHONPATH": _python_path(environ),
        }
        failed = []
        _say(options, f"{size} ranks")
        if run_job(options, environ, plan):
            failed.append(f"{size} ranks")
        alone = copy.copy(options)
        alone.num_proc, alone.show_ranks = 1, None
        _say(options, "one process")
        environ["HVD_VERIFY_RANKS"] = str(size)
        if run_job(alone, environ, arguments.plan(alone, environ)):
            failed.append("one process")
        command = [sys.executable, "-m", "hvd_keras._verify.compare", folder]
        if options.json:
            command.append("--json")
        for what in failed:
            command += ["--failed", what]
        sys.stdout.flush()
        return subprocess.run(command).returncode


def _check(options: Options, plan: Plan) -> None:
    if options.min_np is not None:
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
    if options.verify_steps < 2:
        raise UsageError(
            "`--verify-steps` must be 2 or more. Received: "
            f"{options.verify_steps}."
        )


def _python_path(environ: dict[str, str]) -> str:
    rest = environ.get("PYTHONPATH")
    return _SITE + (os.pathsep + rest if rest else "")


def _say(options: Options, what: str) -> None:
    if not options.json:
        print(f"hvdrun: verify: the script on {what}", file=sys.stderr)
