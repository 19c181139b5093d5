"""Finds out what went wrong with a job: gathers records, asks the doctor."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras import exceptions
from hvd_keras._common import files
from hvd_keras._observe import doctor
from hvd_keras._records import evidence
from hvd_keras._records.blame import class_of
from hvd_keras._records.evidence import MAX_BYTES, Part
from hvd_keras.run.hosts.host import Host
from hvd_keras.run.hosts.rank_records import Folder, unpacked
from hvd_keras.run.job.outcome import Ends
from hvd_keras.run.ranks.rank import Rank

# Where each rank is, is looked at once after a failure, and so often if the
# job goes on.
_SAMPLES_OF_SURVEY = 8
# What the first rank that fails does not explain may still come.
_PATIENCE_SECONDS = 0.5
# For the hosts to answer: after a failure, and over a link that may be slow.
_ANSWER_SECONDS = 2.0
_SURVEY_SECONDS = 15.0


class Inquiry:
    """Looks at all hosts, and keeps what comes in one folder."""

    def __init__(
        self,
        folder: Folder,
        hosts: Sequence[Host],
        say: Callable[[str], None],
    ) -> None:
        self.verdict = ""  # the last one that was said
        self._say = say
        self._folder = folder
        self._hosts = hosts
        self._partial: dict[tuple[int, Part], bytes] = {}
        self._until: float | None = None  # None: it does not run
        self._is_of_failure = False

    def begin(
        self, *, is_of_failure: bool, ranks: Mapping[int, int] | None = None
    ) -> None:
        """Begins to look, once for a failure; `take_answer` tells the end.

        Args:
            is_of_failure: Whether a rank has failed.
            ranks: In an elastic job, the present rank of each member.
        """
        if not self._folder.path or (is_of_failure and self._is_of_failure):
            return
        self._is_of_failure = is_of_failure
        for host in self._hosts:
            host.look(1 if is_of_failure else _SAMPLES_OF_SURVEY, ranks)
        self._began = time.monotonic()
        self._until = self._began + (
            _ANSWER_SECONDS if is_of_failure else _SURVEY_SECONDS
        )

    def look_again(self) -> None:
        """Asks for what ranks have left at their end."""
        if self._folder.path:
            for host in self._hosts:
                host.look(0)
            self._until = time.monotonic() + _ANSWER_SECONDS

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `take_answer` must be called."""
        if self._until is None or self._any_looks():
            return self._until
        if self._is_of_failure:
            return self._began + _PATIENCE_SECONDS
        return time.monotonic()

    def take_answer(self) -> bool:
        """Whether the look has ended; it says so once."""
        deadline = self.next_deadline()
        if deadline is None or time.monotonic() < deadline:
            return False
        self._until = None
        return True

    def is_looking(self) -> bool:
        """Whether answers are missing, and may still come."""
        return (
            self._until is not None
            and time.monotonic() < self._until
            and self._any_looks()
        )

    def _any_looks(self) -> bool:
        return any(host.is_looking() for host in self._hosts)

    def take(self, rank: int, part: Part, data: bytes) -> None:
        """Takes a piece of a file from another host; b"": that was all."""
        known = self._partial.pop((rank, part), b"")
        if len(known) + len(data) > MAX_BYTES:
            raise ValueError("a record is too long")
        if data:
            self._partial[rank, part] = known + data
        elif self._folder.path:
            path = self._folder.path_of(rank, part)
            with contextlib.suppress(OSError):
                files.write(path, unpacked(known))

    def tell(self, ranks: Sequence[Rank], ends: Ends) -> None:
        """Says what is wrong, as far as one knows by now, but only once.

        Args:
            ranks: All ranks.
            ends: How they have ended.
        """
        rows = [_row_of(rank, ends) for rank in ranks]
        has_printed = any(row["printed"] for row in rows)
        if not (
            self._folder.path and (self._folder.has_records() or has_printed)
        ):
            return
        told = {
            "size": len(ranks),
            "leavers": ends.leavers,
            "was_interrupted": ends.interruption is not None,
            "ranks": rows,
        }
        try:
            path = os.path.join(self._folder.path, evidence.JOB)
            files.write(path, json.dumps(told).encode())
            job = evidence.read(self._folder.path)
        except OSError:
            return
        verdict = doctor.diagnose(job)
        if verdict is not None and verdict.sentence != self.verdict:
            self.verdict = verdict.sentence
            self._say(f"verdict: {verdict.shown()}")
        elif verdict is None and not self._is_of_failure:
            self._say("no rank is at fault, as far as the records tell")


def _row_of(rank: Rank, ends: Ends) -> dict[str, Any]:
    told, printed = ends.error(rank.rank), ""
    # A rank that has not joined the job tells nothing.
    if not told and rank.exit_status == 1:
        printed = ends.traceback(rank.rank)
        kind, colon, words = printed.rpartition("\n")[2].partition(": ")
        name = kind.rpartition(".")[2]
        name = class_of(kind) if name in exceptions.__all__ else name
        told = f"{name}{colon}{words}" if printed else ""
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "exit_status": rank.exit_status,
        "signal": "" if rank.signal is None else rank.signal_name(),
        "was_ended": ends.was_ended(rank),
        "told": told,
        "printed": printed,
        "exit_call": ends.ended_by(rank.rank) or "",
        "told_end": ends.ended_by(rank.rank) is not None,
        "is_lost": rank.is_lost,
    }
