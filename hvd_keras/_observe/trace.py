"""`hvd-trace`: makes one file of the timelines of all ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hvd_keras._common import files
from hvd_keras._common.terminal import tell
from hvd_keras._common.version import package_version
from hvd_keras._observe import chrome, recording, tracks
from hvd_keras._observe.page_data import rank_ranges


def merge(folder: str | os.PathLike[str], path: str) -> recording.Recording:
    """Makes one file of the timelines in a folder.

    Args:
        folder: Where the ranks wrote.
        path: The file to write.

    Raises:
        RecordingError: The folder holds no timeline.
        OSError: A file cannot be read or written.
    """
    job = recording.read(folder)
    with (
        files.replacing(path) as partial,
        open(partial, "w", encoding="utf-8") as text,
    ):
        chrome.write(text, tracks.of(job))
    return job


def main(argv: Sequence[str] | None = None) -> int:
    """Runs hvd-trace; returns its exit status."""
    arguments = _parser().parse_args(argv)
    path = arguments.output or os.path.join(arguments.folder, "job.json")
    try:
        job = merge(arguments.folder, path)
    except (recording.RecordingError, OSError) as error:
        tell("hvd-trace", error)
        return 1
    except MemoryError:
        tell("hvd-trace", "there is too little memory for this recording")
        return 1
    for line in describe(job):
        print(line)
    print(
        f"{path}: open it at https://ui.perfetto.dev, which uploads nothing; "
        "for queries by SQL, `pip install perfetto`"
    )
    return 0


def describe(job: recording.Recording) -> list[str]:
    """Says what is there, what is missing, and how good the clocks are."""
    lines = []
    there = {rank.rank for rank in job.ranks}
    missing = [rank for rank in range(job.size) if rank not in there]
    if missing:
        numbers = rank_ranges(missing)
        lines.append(
            f"no file of rank{'s' * (len(missing) > 1)} {numbers}: copy it "
            "from its host, or it had not begun"
        )
    for rank in job.ranks:
        if rank.num_dropped:
            lines.append(
                f"rank {rank.rank} lacks {rank.num_dropped} records: its disk "
                "was too slow"
            )
    error = max(rank.clock_error_ns for rank in job.ranks)
    if error:
        lines.append(
            f"the clocks of the hosts are aligned to {error / 1e3:.0f} us"
        )
    early = [by for *_, by in tracks.early_ends(job)]
    if max(early, default=0) > 2 * error:
        lines.append(
            f"{len(early)} allreduces seem to end before their last rank had "
            f"come, by up to {max(early) / 1e3:.0f} us: a clock is wrong"
        )
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hvd-trace",
        description="Makes one trace of the timelines of all ranks of a job.",
    )
    parser.add_argument(
        "--version", action="version", version=f"hvd_keras {package_version()}"
    )
    commands = parser.add_subparsers(required=True, metavar="merge")
    command = commands.add_parser(
        "merge", help="make one file of those in a folder"
    )
    command.add_argument(
        "folder", metavar="DIR", help="where the ranks wrote: HVD_TIMELINE"
    )
    command.add_argument(
        "-o", "--output", metavar="FILE",
        help="the file to write (default: DIR/job.json)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
