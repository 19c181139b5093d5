"""Looks at the ranks of one host: where each is, and what it has recorded."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

from hvd_keras._common import files
from hvd_keras._records.evidence import MAX_BYTES, Part, process_of
from hvd_keras.run.system import proc

VARIABLE = "HVD_FLIGHT_RECORD_DIR"
# Where a rank stands is looked at that often; then its record must come.
_PERIOD_SECONDS = 0.05
_PATIENCE_SECONDS = 0.8
# The clock of files is behind by up to a tick of the kernel.
_TICK_NS = 10_000_000
_PREFIX = "hvd_flight_"
_MOST_KEPT = 10  # folders of failed jobs


class Folder:
    """Where the ranks of a host write their records."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Takes the user's folder, or makes one that is private."""
        self.path = environ.get(VARIABLE, "").strip()
        self.is_private = not self.path
        if self.is_private:
            # Without one, there is less to tell after a failure.
            with contextlib.suppress(OSError):
                self.path = tempfile.mkdtemp(prefix=_PREFIX)
                _is_free(self.path)  # no longer, until this process ends
                _remove_old(os.path.dirname(self.path))
        # A start that is refused comes to no end of a job.
        atexit.register(self._remove_if_empty)

    def variables(self) -> dict[str, str]:
        """The variable that tells the ranks."""
        return {VARIABLE: self.path} if self.path else {}

    def path_of(self, rank: int, part: Part) -> str:
        """Returns the path of a file of a rank."""
        return os.path.join(self.path, part.name_for(rank))

    def has_records(self) -> bool:
        """Whether a rank has written something."""
        ours = ("job.json", "process_rank_")  # hvdrun's own
        return any(not n.startswith(ours) for n in _names(self.path))

    def remove(self) -> None:
        """Removes it, unless it is the user's."""
        if self.is_private and self.path:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = ""

    def _remove_if_empty(self) -> None:
        if not self.has_records():
            self.remove()


def _is_free(folder: str) -> bool:
    """Whether no process has it in use; then this one has from now on."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    return True


def _remove_old(parent: str) -> None:
    """Keeps the folders of the last jobs of this user, and those in use."""
    found = []
    for entry in os.scandir(parent):
        is_ours = entry.name.startswith(_PREFIX) and entry.is_dir(
            follow_symlinks=False
        )
        info = entry.stat(follow_symlinks=False)
        if is_ours and info.st_uid == os.getuid():
            found.append((info.st_mtime_ns, entry.path))
    for _, path in sorted(found)[:-_MOST_KEPT]:
        # Another job may be removing it.
        with contextlib.suppress(OSError):
            if _is_free(path):
                shutil.rmtree(path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder) if folder else []
    except OSError:
        return []


class Look:
    """Looks at the ranks that run; call `step` when it is due."""

    def __init__(
        self, folder: Folder, pids: Mapping[int, int], num_samples: int
    ) -> None:
        """Begins.

        Args:
            folder: Where the ranks of this host write.
            pids: The process that was started for each rank that runs.
            num_samples: How often to look where each rank is.
        """
        self._folder = folder
        self._pids = {r: self._process_of(r, p) for r, p in pids.items()}
        self._samples_left = num_samples
        self._began_ns = time.time_ns() - _TICK_NS
        self._asked: set[int] = set()  # ranks whose record must come
        self._next = time.monotonic()
        self.is_over = False

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        return None if self.is_over else self._next

    def step(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        if self.is_over or now < self._next:
            return
        if self._samples_left > 0:
            self._samples_left -= 1
            self._sample()
            self._until = now + _PATIENCE_SECONDS
            pause = _PERIOD_SECONDS if self._samples_left else 0.01
            self._next = now + pause
        elif self._has_all() or not self._asked or now >= self._until:
            self._note_processes()
            self.is_over = True
        else:
            self._next = now + 0.01

    def _process_of(self, rank: int, leader: int) -> int:
        """The rank itself, which a program such as a shell may have started."""
        pid = process_of(self._folder.path_of(rank, Part.IDENTITY))
        return pid if proc.session_of(pid) == leader else leader

    def _sample(self) -> None:
        for rank, pid in self._pids.items():
            if self._can_answer(rank, pid):
                proc.interrupt(pid)
                self._asked.add(rank)

    def _can_answer(self, rank: int, pid: int) -> bool:
        # It makes the one file when it is ready for the signal, and the other
        # when it has written what it knows, and ends.
        stacks, error = (
            os.path.exists(self._folder.path_of(rank, part))
            for part in (Part.STACKS, Part.ERROR)
        )
        return stacks and not error and proc.state_of(pid) not in "TtZ"

    def _has_all(self) -> bool:
        return all(map(self._has_answered, self._asked))

    def _has_answered(self, rank: int) -> bool:
        if proc.state_of(self._pids[rank]) in ("", "Z"):
            return True  # it has ended
        with contextlib.suppress(OSError):
            record, stacks = (
                os.stat(self._folder.path_of(rank, part)).st_mtime_ns
                for part in (Part.FLIGHT, Part.STACKS)
            )
            # Stacks come last, in many small pieces.
            is_whole = stacks + 2 * _TICK_NS < time.time_ns()
            return is_whole and min(record, stacks) >= self._began_ns
        return False

    def _note_processes(self) -> None:
        for rank, pid in self._pids.items():
            seen = {
                "rank": rank,
                "pid": pid,
                "state": proc.state_of(pid),
            }
            path = self._folder.path_of(rank, Part.PROCESS)
            with contextlib.suppress(OSError):
                files.write(path, json.dumps(seen).encode())


def by_present_rank(
    pids: Mapping[int, int], ranks: Mapping[int, int] | None
) -> Mapping[int, int]:
    """Returns the process of each rank.

    Args:
        pids: The processes, by what hvdrun calls them.
        ranks: In an elastic job, the present rank of each member.
    """
    if ranks is None:
        return pids
    return {ranks[one]: pid for one, pid in pids.items() if one in ranks}


def packed(
    folder: Folder, ranks: Sequence[int], piece_bytes: int
) -> Iterator[tuple[int, Part, bytes]]:
    """Yields what ranks have left: compressed, in pieces, an empty one last."""
    for rank in ranks:
        for part in Part:
            found = files.read_bounded(folder.path_of(rank, part), MAX_BYTES)
            if found is None:
                continue
            data = zlib.compress(found, level=1)
            for begin in range(0, len(data), piece_bytes):
                yield rank, part, data[begin : begin + piece_bytes]
            yield rank, part, b""


def unpacked(data: bytes) -> bytes:
    """Returns a file that `packed` has compressed.

    Raises:
        ValueError: That makes no sense.
    """
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError("a record is too long, or not whole")
    return found
