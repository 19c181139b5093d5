"""What a verdict on a job says, and the words that all of them share."""

from __future__ import annotations

import dataclasses
import enum
import time

from hvd_keras._common.terminal import one_line
from hvd_keras._observe.call_words import is_of_user, words_of
from hvd_keras._records.evidence import Rank
from hvd_keras._records.stacks import Frame


class Cause(enum.Enum):
    """What went wrong."""

    DEAD = "dead"
    STOPPED = "stopped"
    MISMATCH = "mismatch"
    SKIPPED = "skipped collective"
    DIVERGED = "diverged code"
    ORDER = "another order"
    SLOW_INPUT = "slow input"
    SLOW_LINK = "slow link"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Which rank, why, and where in the user's code."""

    cause: Cause
    rank: int | None  # None: all of them alike
    sentence: str
    frame: Frame | None = None

    def shown(self) -> str:
        """Returns the sentence for a terminal, in one line."""
        return one_line(self.sentence)


def name_of(rank: Rank) -> str:
    """Names a rank with its process."""
    parts = [f"host {rank.host}"] if rank.host else []
    parts += [f"pid {rank.pid}"] if rank.pid else []
    return f"rank {rank.rank}" + (f" ({', '.join(parts)})" if parts else "")


def clock(seconds: float) -> str:
    """The local time of day of a time of the Unix clock."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def position_of(rank: Rank) -> str:
    """Which batch of `fit` a rank has begun, as the progress bar counts."""
    return f"batch {rank.batch} of epoch {rank.epoch}"


def place(frame: Frame | None) -> str:
    """Where a rank is, as the end of a clause."""
    return "" if frame is None else f" at {frame}"


def last_of(rank: Rank, who: str = "it") -> str:
    """What it has done last, as a clause that begins with a semicolon."""
    last = rank.last_done
    if rank.batch:
        return f"; {who} was in {position_of(rank)}"
    if last is None:
        return ""
    step = f"step {rank.num_steps}" if rank.num_steps else words_of(last)
    if rank.num_steps and is_of_user(last):
        step += f", then {words_of(last)}"
    # Its exchange comes at the beginning of a method of Keras.
    did = "began" if step in ("`fit`", "`evaluate`") else "finished"
    return f"; {who} {did} {step} at {clock(last.ended)}"


def stay_of(rank: Rank) -> str:
    """As `last_of`, and where it has been since then."""
    last, frame = rank.last_done, rank.frame
    if frame is None:
        return last_of(rank)
    if last is None:
        return f"; it is at {frame}"
    return f"{last_of(rank)}, and has been at {frame} since then"
