"""What the user sees of a job: the output of its ranks, and hvdrun's own."""

from __future__ import annotations

import sys
from pathlib import Path

from hvd_keras._common.terminal import printable
from hvd_keras.run.screen.log_file import LogFile
from hvd_keras.run.screen.output import RankStream, make_screens
from hvd_keras.run.screen.repeats import Repeats
from hvd_keras.run.spec import Output


class JobOutput:
    """Shows and stores what all ranks print."""

    def __init__(self, kept: Output) -> None:
        self._kept = kept
        self._screens = make_screens(kept.has_tags, kept.has_times)
        self._screens[0].on_failure = self._on_screen_failure
        self._repeats = None if kept.is_verbose else Repeats()
        self._streams: dict[tuple[int, int], RankStream] = {}
        self._errors: dict[int, RankStream] = {}  # stderr by rank
        self._has_lost_log = False

    def warn_if_closed(self) -> None:
        """Says so if nobody can see the ranks' standard output."""
        if sys.stdout is None:
            self.say(
                "the standard output is closed, so nobody sees what the ranks "
                "print there. Redirect it to a file, or use --output-dir."
            )

    def open(self, rank: int) -> None:
        """Prepares for what `rank` will print."""
        screens, shown = self._screens, self._kept.shown_ranks
        is_shown = not shown or rank in shown
        self._streams[rank, 1] = RankStream(
            rank,
            screens[0] if is_shown else None,
            self._open_file(rank, "stdout"),
            shows_growing=rank == 0 and screens[0].is_terminal,
        )
        self._streams[rank, 2] = self._errors[rank] = RankStream(
            rank,
            screens[1] if is_shown else None,
            self._open_file(rank, "stderr"),
            repeats=self._repeats,
        )

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """Takes what came on stream 1 or 2; b"": nothing will come any more."""
        if data:
            self._streams[rank, stream].feed(data)
        else:
            self._streams.pop((rank, stream)).close()

    def end(self, rank: int) -> None:
        """Ends what is still open of a rank."""
        for stream in (1, 2):
            if (rank, stream) in self._streams:
                self.take(rank, stream, b"")

    def has_ended(self) -> bool:
        """Whether nothing will come any more from any rank."""
        return not self._streams

    def close(self) -> None:
        """Shows what is left, and ends all files."""
        for stream in {*self._streams.values(), *self._errors.values()}:
            stream.close()

    def errors_of(self, rank: int) -> RankStream | None:
        """Returns the standard error of a rank; None if it never started."""
        return self._errors.get(rank)

    def show_hidden(self, rank: int) -> None:
        """Shows the last errors of a rank whose output is not shown."""
        shown, errors = self._kept.shown_ranks, self._errors.get(rank)
        if not shown or rank in shown or errors is None:
            return
        lines = [one for one in errors.last_lines if one.strip()]
        if not lines:
            return
        self.say(
            f"the last lines of rank {rank} (`--show-ranks` or `--output-dir` "
            "gives all):"
        )
        for line in lines:
            self.show(f"[{rank}] {line.decode(errors='replace')}")

    def say(self, message: str) -> None:
        """Shows a line of hvdrun."""
        self.show(f"hvdrun: {message}")

    def show(self, text: str) -> None:
        """Shows lines of hvdrun, which may hold names that others chose."""
        self._screens[1].show_own_line(printable(text).encode())

    def _open_file(self, rank: int, name: str) -> LogFile | None:
        if self._kept.folder is None:
            return None
        path = Path(self._kept.folder) / f"rank.{rank}" / name
        return LogFile(path, self._on_log_failure)

    def _on_screen_failure(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):  # the reader has left
            self.say(
                f"the standard output cannot be written: {error.strerror}. "
                "The job goes on, but nobody sees what the ranks print there. "
                "Free space, or redirect it elsewhere."
            )

    def _on_log_failure(self, path: Path, error: OSError) -> None:
        if not self._has_lost_log:
            self._has_lost_log = True
            self.say(
                f"{str(path)!r} cannot be written: {error.strerror}. The job "
                "goes on, but files of --output-dir will miss what the ranks "
                "print. Free space there, or choose another directory."
            )
