"""What hvdrun prints at the end if a rank has failed."""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Sequence

from hvd_keras.run.output import RankStream
from hvd_keras.run.process import RankProcess

_ERROR = re.compile(rb"^\s*[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
_NOISE = re.compile(rb'^\s*File "|^[IW]\d{4} |^WARNING: All log messages')
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def last_error_line(stderr: RankStream, told: str) -> str:
    """The line that most likely says why a rank failed.

    Args:
        stderr: The rank's standard error.
        told: The reason that the rank itself gave, or "".
    """
    if told:
        return told
    lines = [line for line in stderr.last_lines if not _NOISE.match(line)]
    errors = [line for line in lines if _ERROR.match(line)]
    line = (errors or lines or [b""])[-1]
    return _ESCAPE.sub("", line.decode("utf-8", "replace")).strip()


def exit_text(process: RankProcess) -> str:
    """How a rank ended, in a word or two."""
    if process.signal is not None:
        by_us = " by hvdrun" if _was_ended_by_us(process) else ""
        return f"{process.signal_name()}{by_us}"
    return str(process.exit_status)


def exit_status(first: RankProcess, reason: str) -> int:
    """The launcher's exit status: the one of the rank that failed first.

    Args:
        first: The rank that failed first.
        reason: The error that it has reported, or "".
    """
    assert first.exit_status is not None
    if not _was_ended_by_us(first) or not reason:
        return first.exit_status
    # What Python would have ended with.
    interrupted = reason.startswith(KeyboardInterrupt.__name__)
    return 128 + signal.SIGINT if interrupted else 1


def verdict(first: RankProcess, reason: str, seconds: float) -> str:
    """Which rank failed first, how, and how long the job took."""
    how = exit_text(first)
    if _was_ended_by_us(first) and reason:
        how = f"{reason}; it did not end, so it got {how}"
    elif first.signal is None:
        how = f"exit status {how}"
    return (
        f"rank {first.rank} failed first: {how}; the job took {seconds:.1f} s"
    )


def _was_ended_by_us(process: RankProcess) -> bool:
    return process.signal is not None and process.signal == process.sent


def table(rows: Sequence[tuple[RankProcess, str]], width: int) -> str:
    """One line a rank: rank, pid, exit, last error line."""
    cells = [("rank", "pid", "exit", "last error line")] + [
        (str(p.rank), str(p.pid), exit_text(p), line) for p, line in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    lines = []
    for *short, text in cells:
        head = "  ".join(
            cell.ljust(wide) for cell, wide in zip(short, widths, strict=True)
        )
        room = max(40, width - len(head) - 2)
        short_text = textwrap.shorten(text, room, placeholder=" ...")
        lines.append(f"{head}  {short_text}".rstrip())
    return "\n".join(lines)


def signal_name(number: int) -> str:
    """The name of a signal."""
    return signal.Signals(number).name
