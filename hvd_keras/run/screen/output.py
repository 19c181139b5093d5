"""Shows what the ranks print, line by line, with the rank before each.

A program may rewrite a line with carriage returns and backspaces, like a
progress bar. Such a line is shown once, when it is complete, as it last
looked. On a terminal, the line of rank 0 is also shown while it grows.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import BinaryIO, TextIO

from hvd_keras.run.screen.log_file import LogFile
from hvd_keras.run.screen.repeats import Repeats

MAX_LINE_BYTES = 64 << 10  # longer lines are broken
_TRACEBACK = b"Traceback (most recent call last):"
_MOST_LINES = 256  # of a traceback
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_COLOURS = (36, 33, 32, 35, 34, 31)  # by rank, in turn
_CLEAR_LINE = b"\r\x1b[K"


def visible(line: bytes) -> bytes:
    """`line` as a terminal finally shows it."""
    text = line.rstrip(b"\r")
    text = text[text.rfind(b"\r") + 1 :]
    first, *others = text.split(b"\b")
    kept = bytearray(first)
    for other in others:
        del kept[-1:]
        kept += other
    return bytes(kept)


def cut(text: bytes, width: int) -> bytes:
    """Cuts `text` to `width` columns; escapes take no column."""
    kept, used = [], 0
    position = 0
    for escape in [*_ESCAPE.finditer(text), None]:
        end = escape.start() if escape else len(text)
        plain = text[position:end].decode("utf-8", "replace")
        kept.append(plain[: width - used].encode())
        used += len(plain[: width - used])
        if escape:
            kept.append(escape.group())
            position = escape.end()
    return b"".join(kept)


class Screen:
    """One of the launcher's own output streams, shared by all ranks."""

    def __init__(
        self,
        stream: BinaryIO,
        *,
        tag: bool,
        timestamp: bool,
        sibling: Screen | None = None,
    ) -> None:
        """Shows lines on `stream`.

        Args:
            stream: The launcher's standard output or error.
            tag: Whether the rank goes before each line.
            timestamp: Whether the time goes before each line.
            sibling: Another screen that may have an unfinished line on the
                same terminal.
        """
        self._sibling = sibling
        self._stream = stream
        self._tag = tag
        self._timestamp = timestamp
        self._is_open = True
        self.on_failure: Callable[[OSError], None] | None = None
        self.is_terminal = stream.isatty()
        self._colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self._growing = b""  # the unfinished line on the screen

    def show_line(self, rank: int, line: bytes) -> None:
        """Shows a whole line of `rank`."""
        self.show_own_line(self._prefix(rank) + line)

    def show_own_line(self, line: bytes) -> None:
        """Shows a whole line of the launcher."""
        if self._sibling is not None:
            self._sibling._hide()
        self._hide()
        self._write(line + b"\n")
        for screen in (self, self._sibling):
            if screen is not None and screen._growing:
                screen._write(screen._growing)

    def show_growing(self, rank: int, line: bytes) -> None:
        """Shows an incomplete line of `rank`; b"" removes it."""
        previous = self._growing
        self._growing = b""
        if line:
            prefix = self._prefix(rank)
            columns = max(1, shutil.get_terminal_size().columns - 1)
            self._growing = cut(prefix + line, columns)
        if self._growing != previous:
            self._write(_CLEAR_LINE + self._growing)

    def _hide(self) -> None:
        if self._growing:
            self._write(_CLEAR_LINE)

    def _prefix(self, rank: int) -> bytes:
        parts = []
        if self._timestamp:
            now = datetime.datetime.now()
            parts.append(now.isoformat(" ", "milliseconds"))
        if self._tag:
            parts.append(f"[{rank}]")
        if not parts:
            return b""
        text = " ".join(parts)
        if self._colour:
            text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
        return text.encode() + b" "

    def _write(self, data: bytes) -> None:
        # The job goes on when its reader leaves, as in `hvdrun ... | head`.
        if self._is_open:
            try:
                self._stream.write(data)
                self._stream.flush()
            except OSError as error:
                self._is_open = False
                if self.on_failure is not None:
                    self.on_failure(error)
                # Python flushes the stream at exit. A failure there would
                # become this program's status.
                with open(os.devnull, "wb") as null:
                    os.dup2(null.fileno(), self._stream.fileno())


class RankStream:
    """The standard output, or error, of one rank."""

    def __init__(
        self,
        rank: int,
        screen: Screen | None,
        file: LogFile | None,
        *,
        shows_growing: bool = False,
        repeats: Repeats | None = None,
    ) -> None:
        """Takes the output of `rank`.

        Args:
            rank: The rank.
            screen: Shows the output; None shows nothing.
            file: Gets every byte; None writes nothing.
            shows_growing: Whether to show unfinished lines too.
            repeats: Knows which lines not to show again; None shows all.
        """
        self._rank = rank
        self._screen = screen
        self._file = file
        self._shows_growing = shows_growing
        self._repeats = repeats
        self._partial = b""
        self._is_in_traceback = False
        self.last_lines: list[bytes] = []  # the last few that are not blank
        self.traceback: list[bytes] = []  # the last one, as far as it has come

    def feed(self, data: bytes) -> None:
        """Takes what the rank has written."""
        if self._file is not None:
            self._file.write(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._shows_growing and self._screen:
            self._screen.show_growing(self._rank, b"")
        for line in lines:
            self._finish(visible(line))
        # Drop what a carriage return has overwritten.
        start = self._partial.rstrip(b"\r").rfind(b"\r")
        self._partial = self._partial[max(0, start) :]
        if len(self._partial) > MAX_LINE_BYTES:
            self._finish(visible(self._partial))
            self._partial = b""
        if self._shows_growing and self._screen and self._partial:
            self._screen.show_growing(self._rank, visible(self._partial))

    def close(self) -> None:
        """Shows what is left. Call it when no more output can come."""
        if self._partial:
            if self._shows_growing and self._screen:
                self._screen.show_growing(self._rank, b"")
            self._finish(visible(self._partial))
            self._partial = b""
        if self._file is not None:
            self._file.close()

    def _finish(self, line: bytes) -> None:
        if self._screen is not None and not (
            self._repeats and self._repeats.is_one(self._rank, line)
        ):
            self._screen.show_line(self._rank, line)
        if line.strip():
            self.last_lines = [*self.last_lines[-19:], line]
            if line.startswith(_TRACEBACK):
                self.traceback = []
                self._is_in_traceback = True
            elif self._is_in_traceback and len(self.traceback) < _MOST_LINES:
                self.traceback.append(line)
                # Its frames are indented; the error ends it.
                self._is_in_traceback = line.startswith(b" ")


def make_screens(tag: bool, timestamp: bool) -> tuple[Screen, Screen]:
    """The launcher's own standard output and error."""
    stdout = Screen(_bytes_of(sys.stdout), tag=tag, timestamp=timestamp)
    errors = _bytes_of(sys.stderr)
    on_one_terminal = stdout.is_terminal and errors.isatty()
    stderr = Screen(
        errors,
        tag=tag,
        timestamp=timestamp,
        sibling=stdout if on_one_terminal else None,
    )
    return stdout, stderr


def _bytes_of(stream: TextIO | None) -> BinaryIO:
    # None: the launcher was started with this stream closed.
    return open(os.devnull, "wb") if stream is None else stream.buffer
