"""Makes one trace of what the ranks have recorded, and the report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from hvd_keras.run.arguments import Options
from hvd_keras.run.placement import Plan
from hvd_keras.run.usage import UsageError

# The status of hvd-trace without the package `perfetto`.
_NO_PERFETTO_STATUS = 3


@contextlib.contextmanager
def recorded(
    options: Options, environ: MutableMapping[str, str], plan: Plan
) -> Iterator[None]:
    """Has the job within record, and shows what `options` ask for at its end.

    Args:
        options: The command line.
        environ: That of the ranks; gets the folder of the report.
        plan: Which hosts get how many ranks.

    Raises:
        UsageError: The folder must be one that all hosts share.
    """
    with contextlib.ExitStack() as stack:
        if options.report is not None and "HVD_TIMELINE" not in environ:
            if not plan.is_of_one_host:
                raise UsageError(
                    "`--report` must come with `--timeline DIR`, a folder that "
                    "all hosts share, on several hosts. Received: none."
                )
            folder = tempfile.TemporaryDirectory(prefix="hvdrun-report-")
            environ["HVD_TIMELINE"] = stack.enter_context(folder)
        if options.timeline is not None:
            _remove_earlier(environ["HVD_TIMELINE"])
        yield
        if options.timeline is not None:
            _merge(environ["HVD_TIMELINE"])
        if options.report is not None:
            _report(environ["HVD_TIMELINE"], options.report)


def _remove_earlier(folder: str) -> None:
    """Removes what an earlier job has left in `folder`."""
    for path in Path(folder).glob("timeline_rank_*.hvdtrace"):
        path.unlink(missing_ok=True)


def _merge(folder: str) -> None:
    """Merges the timelines in `folder`, and says where the trace is.

    Without the package `perfetto` the trace is in Chrome's format. It is made
    in a process of its own: it needs libraries that hvdrun does without.
    """
    command = [sys.executable, "-m", "hvd_keras._observe.trace", "merge"]
    done = _run([*command, folder])
    if done.returncode == _NO_PERFETTO_STATUS:
        done = _run([*command, folder, "--json"])
    for line in (done.stdout + done.stderr).splitlines():
        print(f"hvdrun: timeline: {line}", file=sys.stderr)


def _report(folder: str, path: str) -> None:
    """Writes the report, in a process of its own for the same reason."""
    command = [sys.executable, "-m", "hvd_keras._observe.report"]
    done = _run([*command, folder, "-o", path])
    for line in (done.stdout + done.stderr).splitlines():
        print(f"hvdrun: {line}", file=sys.stderr)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)
