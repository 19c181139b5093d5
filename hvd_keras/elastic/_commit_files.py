"""Commits on disk: each whole or not there, and the newest is the one."""

from __future__ import annotations

import contextlib
import os
import re
import threading

import numpy as np

from hvd_keras._common import log
from hvd_keras._common.files import replacing
from hvd_keras._job.hosts import partition
from hvd_keras.elastic._commits import Commit, Number

_NAME = re.compile(r"(\.partial\.)?commit-(\d{8})-(\d{8})\.hvd")
_MAGIC = b"HVDCOMMIT1\n"


class CommitFiles:
    """Writes commits in a thread, on rank 0; reads them after a restart.

    The number of a commit is in the name of its file. So a rank of an older
    membership that still writes cannot replace a newer commit.

    Args:
        directory: Holds the files, and nothing else.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
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
        """Returns the newest commit that can be read."""
        whole = {n: path for path, n, is_whole in self._files() if is_whole}
        for number in sorted(whole, reverse=True):
            try:
                return _read(whole[number], number)
            except (OSError, ValueError) as error:
                log.warning(f"a commit on disk cannot be read: {error}")
        return None

    def delete(self) -> None:
        """Deletes all commits, and the directory if nothing else is there."""
        self.finish()
        self._delete_below(None)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

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
        os.makedirs(self._directory, exist_ok=True)
        lengths = np.array([len(commit.header), commit.data.nbytes], "<u8")
        checksum = np.array([commit.checksum], "<u8")
        path = self._path(commit.number)
        with replacing(path) as partial:
            with open(partial, "wb") as file:
                file.write(_MAGIC + lengths.tobytes() + checksum.tobytes())
                file.write(commit.header)
                file.write(commit.data.data)
            partition.check_may_write("A commit")
        self._delete_below(commit.number)

    def _files(self) -> list[tuple[str, Number, bool]]:
        """Returns path and number of each file, and whether it is whole.

        Those that a killed rank was writing are not.
        """
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        found = [match for match in map(_NAME.fullmatch, names) if match]
        return [
            (
                os.path.join(self._directory, match[0]),
                (int(match[2]), int(match[3])),
                match[1] is None,
            )
            for match in found
        ]

    def _path(self, number: Number) -> str:
        name = f"commit-{number[0]:08d}-{number[1]:08d}.hvd"
        return os.path.join(self._directory, name)

    def _delete_below(self, limit: Number | None) -> None:
        for path, number, _ in self._files():
            if limit is None or number < limit:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)


def _read(path: str, number: Number) -> Commit:
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
    raise ValueError(
        f"A commit must be a whole file of `hvd.elastic`. Received: {path!r} "
        f"of {len(content)} bytes."
    )
