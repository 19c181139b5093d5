"""Stores what the functions of ranks return, for the caller of `hvd.run`.

Each result becomes a file in a folder of the caller that nobody else may enter.
"""

from __future__ import annotations

import json
from pathlib import Path

from hvd_keras._rendezvous.giving import HEADER, STORED
from hvd_keras._rendezvous.protocol import Identity
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.run.job.outcome import Outcome
from hvd_keras.run.system.loop import READ, Loop

_OUTCOME = "outcome.json"
_READ_BYTES = 1 << 20


def take(
    loop: Loop, folder: str, identity: Identity, stream: Stream, unsent: bytes
) -> None:
    """Takes the connection of a rank that has proved itself."""
    _Incoming(loop, stream, unsent, Path(folder) / f"rank.{identity.rank}")


class _Incoming:
    """A result that is coming in."""

    def __init__(
        self, loop: Loop, stream: Stream, unsent: bytes, path: Path
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._unsent = bytearray(unsent)
        self._path = path
        self._header = b""
        self._left = 0  # bytes still to come
        self._is_stored = False
        self._file = path.with_suffix(path.suffix + ".part").open("wb")
        loop.watch(stream, self._step)
        self._step()

    def _step(self) -> None:
        goes_on = self._stream.send(self._unsent)
        if goes_on and not self._is_stored:
            data = self._stream.receive(_READ_BYTES)
            goes_on = data != b""
            while data:
                self._store(data)
                has_more = self._stream.has_more() and not self._is_stored
                data = self._stream.receive(_READ_BYTES) if has_more else None
            goes_on = goes_on and self._stream.send(self._unsent)
        if not goes_on or (self._is_stored and not self._unsent):
            self._loop.forget(self._stream)
            self._stream.close()
            self._file.close()
            return
        self._loop.change(self._stream, READ | self._stream.send_event)

    def _store(self, data: bytes) -> None:
        if len(self._header) < HEADER.size:
            missing = HEADER.size - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) < HEADER.size:
                return
            (self._left,) = HEADER.unpack(self._header)
        self._file.write(data[: self._left])
        self._left -= len(data[: self._left])
        if self._left == 0:
            self._file.close()
            Path(self._file.name).rename(self._path)
            self._unsent += STORED
            self._is_stored = True


def note_outcome(folder: str, found: Outcome) -> None:
    """Stores how the job has ended."""
    (Path(folder) / _OUTCOME).write_text(json.dumps(found))


def outcome_in(folder: str) -> Outcome | None:
    """Returns how the job has ended; None: hvdrun was killed."""
    try:
        return Outcome(*json.loads((Path(folder) / _OUTCOME).read_text()))
    except FileNotFoundError:
        return None


def stored_in(folder: str) -> dict[int, Path]:
    """Returns the files of all ranks, or members, that handed one over."""
    files = Path(folder).glob("rank.*")
    return {
        int(path.name.partition(".")[2]): path
        for path in files
        if path.suffix != ".part"
    }
