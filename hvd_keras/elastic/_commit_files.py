"""Commits on disk: each whole or not there, and the newest is the one."""

from __future__ import annotations

import contextlib
import os
import re
import threading

import numpy as np

from hvd_keras._common import damage, files, log, owners
from hvd_keras._job.hosts import partition
from hvd_keras.elastic._commits import Commit
from hvd_keras.exceptions import DamagedFileError

_NAME = re.compile(r"commit-(\d{8})-(\d{8})\.hvd")
_MAGIC = b"HVDCOMMIT1\n"


class CommitFiles:
    """Writes commits in a thread, on rank 0; reads them after a restart.

    The number of a commit is in the name of its file. So a rank of an older
    membership that still writes cannot replace a newer commit. The two newest
    ones stay, in case that one is damaged.

    Args:
        directory: Holds the files, and nothing else.

    Attributes:
        owned: The path that stands for all of them: its owner writes them.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.owned = os.path.join(directory, "commit-{number}.hvd")
        self._changed = threading.Condition()
        self._next: Commit | None = None
        self._thread: threading.Thread | None = None

    def write(self, commit: Commit) -> None:
        """Writes a commit soon; leaves out one that still waits."""
        with self._changed:
            if self._next is not None:
                self._next.is_in_use = False
            commit.is_in_use = True
            self._next = commit
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="hvd_keras commits"
                )
                self._thread.start()

    def finish(self) -> None:
        """Waits until all is written."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def newest(self) -> Commit | None:
        """Returns the newest commit that is whole.

        Raises:
            DamagedFileError: There are some, and all are damaged.
        """
        return damage.read_newest(self._newest_first(), _read)

    def check_places(self) -> None:
        """Checks that all that looks like a commit is a file.

        Raises:
            InvalidArgumentError: It is something else.
        """
        for path in self._newest_first():
            files.check_place(path)

    def delete(self) -> None:
        """Deletes all commits, and the directory if nothing else is there."""
        self.finish()
        self._delete(self._newest_first())
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if _NAME.fullmatch(name.removesuffix(damage.put_aside(""))):
                    self._delete([os.path.join(self._directory, name)])
        self.let_go()
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def let_go(self) -> None:
        """Waits until all is written, and lets other jobs write."""
        self.finish()
        owners.release(self.owned)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                commit, self._next = self._next, None
                if commit is None:
                    self._thread = None
                    return
            try:
                self._write(commit)
            except Exception as error:
                log.warning(f"a commit was not written to disk: {error}")
            finally:
                commit.is_in_use = False

    def _write(self, commit: Commit) -> None:
        owners.claim(self.owned)
        lengths = np.array([len(commit.header), commit.data.nbytes], "<u8")
        checksum = np.array([commit.checksum], "<u8")
        name = f"commit-{commit.number[0]:08d}-{commit.number[1]:08d}.hvd"
        path = os.path.join(self._directory, name)
        with files.replacing(path) as partial:
            with open(partial, "wb") as file:
                file.write(_MAGIC + lengths.tobytes() + checksum.tobytes())
                file.write(commit.header)
                file.write(commit.data.data)
            partition.check_may_write("A commit")
            owners.claim(self.owned)
        newest_first = self._newest_first()
        self._delete(newest_first[newest_first.index(path) + 2 :])

    def _newest_first(self) -> list[str]:
        """Returns the paths of the commits."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        names = sorted(filter(_NAME.fullmatch, names), reverse=True)
        return [os.path.join(self._directory, name) for name in names]

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def _read(path: str) -> Commit:
    match = _NAME.fullmatch(os.path.basename(path))
    assert match is not None
    number = int(match[1]), int(match[2])
    with open(path, "rb") as file:
        content = file.read()
    begin = len(_MAGIC) + 24
    numbers = np.frombuffer(content[len(_MAGIC) : begin], "<u8")
    is_ours = content.startswith(_MAGIC) and len(numbers) == 3
    if is_ours:
        header_bytes, data_bytes, checksum = map(int, numbers)
        end = begin + header_bytes
        if len(content) == end + data_bytes:
            data = np.frombuffer(content, np.uint8, data_bytes, end)
            commit = Commit(number, content[begin:end], data, checksum)
            if commit.is_whole():
                return commit
    raise DamagedFileError("it is no whole commit, or its checksum is wrong")
