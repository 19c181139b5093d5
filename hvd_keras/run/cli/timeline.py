"""Makes one trace of what the ranks have recorded, and the report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, MutableMapping

from hvd_keras._common.terminal import tell
from hvd_keras._records import files
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.ranks.guard import guarded_folder
from hvd_keras.run.spec import Output
from hvd_keras.run.usage import UsageError


@contextlib.contextmanager
def recorded(
    kept: Output, environ: MutableMapping[str, str], plan: Plan
) -> Iterator[None]:
    """Has the job within record, and shows what `kept` asks for at its end.

    Args:
        kept: What the user asks for.
        environ: That of the ranks; gets the folder of the report.
        plan: Which hosts get how many ranks.

    Raises:
        UsageError: The folder must be one that all hosts share.
    """
    with contextlib.ExitStack() as stack:
        if kept.report is not None and "HVD_TIMELINE" not in environ:
            if not plan.is_of_one_host:
                raise UsageError(
                    "`--report` must come with `--timeline DIR`, a folder that "
                    "all hosts share, on several hosts. Received: none."
                )
            made = guarded_folder("hvdrun-report-")
            environ["HVD_TIMELINE"] = stack.enter_context(made)
        if kept.timeline is not None:
            files.remove_all(environ["HVD_TIMELINE"])  # of an earlier job
        yield
        folder = environ.get("HVD_TIMELINE", "")
        folders = files.folders_of_epochs(folder) or [folder]
        if kept.timeline is not None:
            for one in folders:
                _merge(one)
        if kept.report is not None:
            longest = max(folders, key=_num_bytes)
            if len(folders) > 1:
                print(
                    f"hvdrun: the report is of the longest of {len(folders)} "
                    f"memberships: {longest}",
                    file=sys.stderr,
                )
            _report(longest, kept.report)


def _num_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in files.timelines_in(folder))


def _merge(folder: str) -> None:
    """Merges the timelines in `folder`, and says where the trace is.

    It is made in a process of its own: it needs libraries that hvdrun does
    without.
    """
    _run("hvd_keras._observe.trace", "merge", folder, label="timeline: ")


def _report(folder: str, path: str) -> None:
    """Writes the report, in a process of its own for the same reason."""
    _run("hvd_keras._observe.report", folder, "-o", path)


def _run(module: str, *arguments: str, label: str = "") -> None:
    """Runs a program of ours, and tells what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in (done.stdout + done.stderr).splitlines():
        tell("hvdrun", label + line)
