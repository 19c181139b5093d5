"""What hvdrun prints at the end if a rank has failed."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
from collections.abc import Sequence

from hvd_keras import exceptions
from hvd_keras._common.terminal import cell, in_columns, one_line
from hvd_keras._records.blame import class_of
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.screen.output import RankStream
from hvd_keras.run.screen.repeats import known_text

_ERROR = re.compile(rb"^\s*[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
# What absl and TensorFlow log that is no error, and lines of a traceback.
_NOISE = re.compile(
    rb'\s*File "|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] '
    rb"|\d{4}-\d\d-\d\d [\d:,]+ (DEBUG|INFO|WARNING) hvd_keras"
    rb"|WARNING: All log messages"
)
_WARNING = re.compile(rb"\S.*:\d+: \w*Warning: ")
# What users of other packages try, as errors tell it.
_HABITS = {
    r"No module named 'horovod": (
        "a program for Horovod runs by `hvdrun --horovod-compat -np 2 python "
        "...`, see docs/horovod.md"
    ),
    r"No module named 'hvd_keras'": (
        "the Python that the command has started lacks hvd_keras; "
        f"{sys.executable} has it: put it in the place of that Python in the "
        "command of hvdrun"
    ),
    r"DistributedOptimizer\(\) .* 'named_parameters'": (
        "for torch, `import hvd_keras.torch as hvd`, see docs/torch.md"
    ),
    "Default process group has not been init|torch.distributed using env:": (
        "hvdrun starts no process group of torch.distributed: `hvd.init()` "
        "takes its place, `hvd.DistributedOptimizer` that of "
        "DistributedDataParallel, and `DistributedSampler(data, hvd.size(), "
        "hvd.rank())` deals the rows, see docs/torch.md"
    ),
}
# What JAX puts before an error of a program.
_BEFORE_OURS = re.compile(
    r"^[\w.]*: INTERNAL: (Error dispatching computation: )*(?=hvd_keras\.)"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def last_error_line(stderr: RankStream | None) -> str:
    """The line that most likely says why a rank failed; "": there is none.

    Args:
        stderr: The rank's standard error; None if it was never started.
    """
    if stderr is None:
        return ""
    lines = _without_noise(stderr.last_lines)
    errors = [line for line in lines if _ERROR.match(line)]
    line = (errors or lines or [b""])[-1]
    text = _ESCAPE.sub("", line.decode("utf-8", "replace")).strip()
    return _BEFORE_OURS.sub("", text)


def last_traceback(stderr: RankStream | None) -> str:
    """The last traceback that a rank has printed; "": there is none.

    Args:
        stderr: The rank's standard error; None if it was never started.
    """
    lines = [] if stderr is None else stderr.traceback
    if not lines or not _ERROR.match(lines[-1]):
        return ""
    return b"\n".join(lines).decode("utf-8", "replace")


def _without_noise(lines: Sequence[bytes]) -> list[bytes]:
    """Leaves out what says nothing of an error: logs, warnings of Python."""
    kept, is_source = [], False
    for line in lines:
        # Python shows the line of source below a warning.
        is_of_warning = is_source and line.startswith(b"  ")
        is_source = bool(_WARNING.match(line))
        is_known = _NOISE.match(line) or known_text(line) is not None
        if not (is_of_warning or is_source or is_known):
            kept.append(line)
    return kept


def where_to_read(lines: Sequence[str]) -> str:
    """Says what helps against errors in the lines; "": nobody knows."""
    for pattern, cure in _HABITS.items():
        if any(re.search(pattern, line) for line in lines):
            return cure
    # A module goes before the name in a traceback, and before the name of
    # another package's exception.
    names = [
        name
        for name in exceptions.__all__
        if any(
            re.match(rf"(hvd_keras\.([\w]+\.)*)?{name}\b", line)
            for line in lines
        )
    ]
    if not names:
        return ""
    return (
        f"for causes and cures of {', '.join(names)} see docs/errors.md in the "
        "clone of hvd_keras"
    )


def exit_text(rank: Rank) -> str:
    """How a rank ended, in a word or two."""
    if rank.is_lost:
        return "lost"
    if rank.signal is not None:
        by_us = " by hvdrun" if _was_ended_by_us(rank) else ""
        return f"{rank.signal_name()}{by_us}"
    return str(rank.exit_status)


def exit_status(first: Rank, reason: str) -> int:
    """The launcher's exit status: the one of the rank that failed first.

    Args:
        first: The rank that failed first.
        reason: The error that it has reported, or "".
    """
    assert first.exit_status is not None
    if not _was_ended_by_us(first) or not reason:
        return first.exit_status
    # What Python would have ended with.
    interrupted = class_of(reason) == KeyboardInterrupt.__name__
    return 128 + signal.SIGINT if interrupted else 1


def interruption(number: int) -> str:
    """How a job ended that a signal to hvdrun has ended."""
    if number == signal.SIGINT:
        return "interrupted"
    return f"ended by {signal_name(number)}"


# Of a job of `--strict` whose ranks have all ended well.
WARNED = "the job has ended, but with `--strict` a warning is an error"


def misplaced(command: Sequence[str]) -> str:
    """What to say of an option of hvdrun that a program gets; "": nothing."""
    if "--distribute" not in command:
        return ""
    return (
        f"`--distribute` stands behind `{command[0]}`, which gets it: put it "
        "before that, if it is meant for hvdrun"
    )


def not_yet_joined(num_ranks: int, seconds: float) -> str:
    """What to say of processes that run, each by itself for all we know."""
    return (
        f"no rank has called `hvd.init()` for {seconds:.0f} s. If the script "
        "does not, each process works alone; an unchanged script trains "
        f"together by `hvdrun --distribute -np {num_ranks} ...`"
    )


def nobody_joined(num_ranks: int, command: Sequence[str]) -> str:
    """What to say of processes that have all ended well, each by itself."""
    cure = misplaced(command) or (
        "To train together, start an unchanged script of Keras by `hvdrun "
        f"--distribute -np {num_ranks} ...`, or call `hvd.init()` at its "
        "start, see docs/quickstart.md; for plain torch docs/torch.md"
    )
    return (
        f"no rank has called `hvd.init()`: {num_ranks} processes ran the "
        f"program, each alone. {cure}"
    )


def shared_failure(first: Rank, seconds: float) -> str:
    """How a job ended in which no rank is to blame, for all raised alike."""
    return (
        f"all ranks failed: exit status {exit_text(first)}; the job took "
        f"{seconds:.1f} s"
    )


def verdict(first: Rank, reason: str, seconds: float) -> str:
    """Which rank failed first, how, and how long the job took."""
    how = exit_text(first)
    if _was_ended_by_us(first) and reason:
        how = f"{reason}; it did not end, so it got {how}"
    elif first.is_lost:
        how = f"its host {first.host} was lost"
    elif first.signal is None:
        how = f"exit status {how}"
    where = f" (host {first.host})" if first.host and not first.is_lost else ""
    return (
        f"rank {first.rank}{where} failed first: {how}; the job took "
        f"{seconds:.1f} s"
    )


def _was_ended_by_us(rank: Rank) -> bool:
    return rank.signal is not None and rank.signal == rank.sent


def table(rows: Sequence[tuple[Rank, str]], width: int) -> str:
    """One line a rank: rank, host (if several), pid, exit, last error line."""
    heads = [("rank", "host", "pid", "exit")]
    heads += [
        (str(r.rank), cell(r.host), str(r.pid), exit_text(r)) for r, _ in rows
    ]
    texts = ["last error line", *(one_line(line) for _, line in rows)]
    has_hosts = any(rank.host for rank, _ in rows)
    shown = heads if has_hosts else [(head[0], *head[2:]) for head in heads]
    lines = []
    for head, text in zip(in_columns(shown), texts, strict=True):
        room = max(40, width - len(head) - 2)
        short_text = textwrap.shorten(text, room, placeholder=" ...")
        lines.append(f"{head}  {short_text}".rstrip())
    return "\n".join(lines)


def signal_name(number: int) -> str:
    """The name of a signal."""
    return signal.Signals(number).name
