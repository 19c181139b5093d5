"""The entry point of `hvd-doctor`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hvd_keras._common.terminal import (
    cell,
    in_columns,
    one_line,
    printable,
    tell,
)
from hvd_keras._common.version import package_version
from hvd_keras._observe import doctor
from hvd_keras._observe.verdict import Cause, Verdict, clock
from hvd_keras._records import evidence
from hvd_keras._records.evidence import Job, Rank
from hvd_keras._records.stacks import Stack


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what went wrong with a job.

    Args:
        argv: The command line without the program's name. Defaults to that of
            this process.

    Returns:
        0 if a rank is at fault, 1 if nothing can be told, 2 if there are no
        records.
    """
    parser = argparse.ArgumentParser(
        prog="hvd-doctor",
        description="Says which rank of a job is at fault, and why, from the "
        "flight records in a folder.",
    )
    parser.add_argument(
        "--version", action="version", version=f"hvd_keras {package_version()}"
    )
    parser.add_argument(
        "folder", help="the folder that hvdrun has named: HVD_FLIGHT_RECORD_DIR"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the verdict as JSON"
    )
    arguments = parser.parse_args(argv)
    folder = arguments.folder
    try:
        job = evidence.read(folder)
    except OSError as error:
        tell("hvd-doctor", error)
        return 2
    has_ends = any(r.exit_status is not None for r in job.ranks.values())
    if not has_ends and not any(r.has_record for r in job.ranks.values()):
        tell("hvd-doctor", f"{folder} holds no flight records")
        return 2
    verdict = doctor.diagnose(job)
    text = _as_json(verdict) if arguments.json else _report(job, verdict)
    print(printable(text))
    return 0 if verdict else 1


def _as_json(verdict: Verdict | None) -> str:
    if verdict is None:
        return json.dumps(None)
    frame = verdict.frame
    return json.dumps(
        {
            "rank": verdict.rank,
            "cause": verdict.cause.value,
            "file": frame.file if frame else None,
            "line": frame.line if frame else None,
            "sentence": verdict.sentence,
        }
    )


def _report(job: Job, verdict: Verdict | None) -> str:
    """The verdict, a line for each rank, and the stack of the one at fault."""
    lines = ["No rank can be named: no collective has failed or waits long."]
    if verdict is not None:
        lines = [f"{verdict.shown()}.", f"Cause: {_words_of(verdict)}."]
    lines += ["", *_table(job)]
    if verdict is not None:
        # Of all ranks alike, one speaks for the others.
        rank = job.ranks[verdict.rank or 0]
        stack = rank.error or next(iter(rank.samples[-1:]), ())
        if stack:
            lines += ["", *_shown(rank, stack)]
    return "\n".join(lines)


def _words_of(verdict: Verdict) -> str:
    ended = {
        Cause.DEAD: "the end of a process",
        Cause.STOPPED: "a process that stands still",
    }
    return ended.get(verdict.cause, verdict.cause.value)


def _table(job: Job) -> list[str]:
    rows = [("rank", "host", "pid", "end", "last finished", "at", "waits for")]
    for _, rank in sorted(job.ranks.items()):
        last, waiting = rank.last_done, rank.waiting()
        rows.append(
            (
                str(rank.rank),
                cell(rank.host),
                str(rank.pid or ""),
                cell(_end_of(rank)),
                cell(last.name) if last else "",
                clock(last.ended) if last else "",
                cell(waiting[0].name) if waiting else "",
            )
        )
    return [line.rstrip() for line in in_columns(rows)]


def _end_of(rank: Rank) -> str:
    if rank.is_lost:
        return "lost"
    if rank.signal:
        return rank.signal
    if rank.exit_status is not None:
        return str(rank.exit_status)
    return "stopped" if rank.state in ("T", "t") else ""


def _shown(rank: Rank, stack: Stack) -> list[str]:
    head = f"Stack of rank {rank.rank}, the innermost call first:"
    return [
        head,
        *(f"  {one_line(frame.file)}:{frame.line}" for frame in stack),
    ]


if __name__ == "__main__":
    sys.exit(main())
