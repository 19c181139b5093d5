"""`hvd-report`: makes a page of a recording. docs/report.md explains it."""

from __future__ import annotations

import argparse
import importlib.resources
import json
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras._common import files, version
from hvd_keras._common.terminal import tell
from hvd_keras._observe import page_data, recording
from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.recording import Recording, RecordingError

_COPY_BYTES = 64 << 20
_COPIES = 5


class _OtherMachineError(Exception):
    """What was to be measured is on another machine."""


def write_report(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    measure_copy: bool = False,
) -> None:
    """Writes the report of a recorded job.

    Args:
        folder: What `HVD_TIMELINE` or `hvdrun --timeline` has named.
        path: The HTML file. It needs no other file and no network.
        measure_copy: Also measures how fast a core of this machine copies
            memory, to compare with. The job must have run here alone.

    Raises:
        RecordingError: `folder` holds no recording.
        OSError: A file cannot be read or written.
    """
    found = recording.read(folder)
    copy = _copy_bytes_a_second(found) if measure_copy else None
    write_page(found, path, copy_bytes_a_second=copy)


def write_page(
    found: Recording,
    path: str | os.PathLike[str],
    *,
    copy_bytes_a_second: float | None = None,
) -> None:
    """As `write_report`, of a recording that has been read."""
    data = page_data.page_data(analyze(found), copy_bytes_a_second)
    data["version"] = version.package_version()
    page = render(data)
    with (
        files.replacing(os.fspath(path)) as partial,
        open(partial, "w", encoding="utf-8") as file,
    ):
        file.write(page)


def render(data: dict[str, Any]) -> str:
    """Returns the page that shows `data`: a template, filled in."""
    # Names of tensors may hold anything: no `<` ends the script's element.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    pieces = {
        "STYLE": _file("report.css"),
        "D3": _file("vendor/d3.min.js"),
        "PLOT": _file("vendor/plot.umd.min.js"),
        "LICENSES": _licenses(),
        "DATA": text,
        "TABLES": _file("tables.js"),
        "CHARTS": _file("charts.js"),
        "SCRIPT": _file("report.js"),
    }
    return re.sub(
        r"\{\{(\w+)\}\}",
        lambda match: pieces[match[1]],
        _file("report.html"),
    )


def _file(name: str) -> str:
    folder = importlib.resources.files("hvd_keras._observe") / "page"
    return folder.joinpath(name).read_text("utf-8")


def _licenses() -> str:
    texts = (_file(f"vendor/LICENSE-{name}") for name in ("d3", "plot"))
    return "\n".join(texts).replace("--", "- -")


def _copy_bytes_a_second(found: Recording) -> float:
    hosts = {one.host for one in found.ranks}
    here = socket.gethostname()
    if hosts - {here, here.partition(".")[0]}:
        raise _OtherMachineError(
            "`--measure-copy` must run on the one machine of the job. "
            f"Received: hosts {', '.join(sorted(hosts))}; this is {here}."
        )
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(_COPIES):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return _COPY_BYTES / min(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs hvd-report.

    Args:
        argv: The command line without the program's name. Defaults to that
            of this process.

    Returns:
        The exit status: 0, or 1 after saying what is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="hvd-report",
        description="Makes a page that shows where a job's time went, from "
        "what `hvdrun --timeline DIR` has recorded.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"hvd_keras {version.package_version()}",
    )
    parser.add_argument("folder", metavar="DIR", help="the recording")
    parser.add_argument(
        *("-o", "--output"),
        default="report.html",
        metavar="FILE",
        help="the page to write (default: %(default)s)",
    )
    parser.add_argument(
        "--measure-copy",
        action="store_true",
        help="measure how fast a core of this machine copies memory, and "
        "show it beside the speed of collectives",
    )
    options = parser.parse_args(argv)
    try:
        write_report(
            options.folder, options.output, measure_copy=options.measure_copy
        )
    except (OSError, RecordingError, _OtherMachineError) as error:
        tell("hvd-report", error)
        return 1
    except MemoryError:
        tell("hvd-report", "there is too little memory for this recording")
        return 1
    tell("hvd-report", f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
