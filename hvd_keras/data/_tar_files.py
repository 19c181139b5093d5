"""Tars of WebDataset: a row is the members that share a key."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_keras.data._opened_files import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    OpenedFile,
    Row,
    blocks_of,
)
from hvd_keras.data._record_index import Index
from hvd_keras.exceptions import DamagedFileError

_HEADER = 512  # bytes; data are padded to as many
_SMALL, _WINDOW = 1 << 13, 1 << 16
_KEY = "__key__"


class _Member(NamedTuple):
    begin: int  # of its header, or of what describes it
    key: bytes
    suffix: str
    offset: int  # of its data
    num_bytes: int


class _TarRow(NamedTuple):
    begin: int
    end: int
    key: bytes
    members: dict[str, _Member]


class _BadHeaderError(Exception):
    """At an offset, for a reason."""


class TarFile(OpenedFile):
    """A tar without compression."""

    def __init__(self, path: str, num_kept: int) -> None:
        super().__init__(path, num_kept)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Headers are found again: to keep all would take much memory.
        self._rows_of = functools.lru_cache(maxsize=256)(self._rows_between)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def index(self, *, checks: bool) -> tuple[list[tuple[int, int]], int, int]:
        blocks: list[tuple[int, int]] = []
        number, end = 0, 0
        try:
            for row in self._rows(0, 0):
                if not blocks or (
                    row.begin - blocks[-1][0] >= BLOCK_BYTES
                    and number - blocks[-1][1] >= BLOCK_ROWS
                ):
                    blocks.append((row.begin, number))
                number, end = number + 1, row.end
        except DamagedFileError:
            if not checks:
                raise
            return blocks, number, end
        return blocks, number, self.num_bytes

    @functools.cached_property
    def spec(self) -> Any:
        first = next(self._rows(0, 0))
        names = sorted([_KEY, *first.members])
        return {name: tf.TensorSpec([], tf.string) for name in names}

    def read(self, rows: list[int], index: Index) -> list[Row]:
        firsts = blocks_of(index)
        found = []
        for number in rows:
            block = int(firsts[:, 1].searchsorted(number, side="right")) - 1
            is_last = block + 1 == len(firsts)
            end = (
                index.num_bytes - index.num_lost_bytes
                if is_last
                else int(firsts[block + 1, 0])
            )
            begin, first = firsts[block].tolist()
            of_block = self._rows_of(begin, first, end)
            if number - first >= len(of_block):
                raise self.damaged(number, begin, "it has changed")
            found.append(self._parts_of(of_block[number - first], number))
        return found

    def _parts_of(self, row: _TarRow, number: int) -> Row:
        parts = []
        for name in self.spec:
            member = row.members.get(name)
            if name == _KEY:
                parts.append(row.key)
            elif member is None:
                raise self.damaged(number, row.begin, f"it has no .{name}")
            else:
                data = os.pread(self._fd, member.num_bytes, member.offset)
                if len(data) != member.num_bytes:
                    raise self.damaged(
                        number, member.begin, "the file ends in it"
                    )
                parts.append(data)
        return parts

    def _rows_between(self, begin: int, first: int, end: int) -> list[_TarRow]:
        found = []
        for row in self._rows(begin, first):
            found.append(row)
            if row.end >= end:
                break
        return found

    def _rows(self, offset: int, number: int) -> Iterator[_TarRow]:
        """Yields the rows from one on."""
        begin, end = offset, offset
        members: dict[str, _Member] = {}
        try:
            for member in self._members(offset):
                key = next(iter(members.values()), member).key
                if member.key != key:
                    yield _TarRow(begin, end, key, members)
                    number, members = number + 1, {}
                if not members:
                    begin = member.begin
                members[member.suffix] = member
                end = member.offset + _padded(member.num_bytes)
        except _BadHeaderError as error:
            raise self.damaged(number, *error.args) from None
        if members:
            yield _TarRow(begin, end, member.key, members)

    def _members(self, offset: int) -> Iterator[_Member]:
        """Yields the regular files of the tar, from a header on."""
        window, window_begin, ahead = b"", 0, _WINDOW
        begin = offset
        told: dict[str, Any] = {}
        while offset + _HEADER <= self.num_bytes:
            place = offset - window_begin
            if place < 0 or place + _HEADER > len(window):
                window, window_begin = os.pread(self._fd, ahead, offset), offset
                place = 0
            header = window[place : place + _HEADER]
            total = sum(header)
            if not total:
                return
            data = offset + _HEADER
            field = header[148:156]
            if _checksum_in(field) != total - sum(field) + 256:
                raise _BadHeaderError(
                    offset, "its header does not match its checksum"
                )
            size = told["size"] if "size" in told else _size_in(header)
            if data + size > self.num_bytes:
                raise _BadHeaderError(offset, "the file ends in it")
            kind = header[156:157]
            if kind in (b"x", b"L"):
                text = os.pread(self._fd, size, data)
                told |= (
                    _told_by(text)
                    if kind == b"x"
                    else {"path": text.rstrip(b"\0")}
                )
            else:
                if kind in (b"0", b"\0", b"7"):
                    key, suffix = _split(told.get("path") or _name_in(header))
                    yield _Member(begin, key, suffix, data, size)
                told = {}
            offset = data + _padded(size)
            ahead = _WINDOW if size < _SMALL else _HEADER
            if not told:
                begin = offset
        if offset != self.num_bytes:
            raise _BadHeaderError(offset, "the file ends in it")


def _padded(size: int) -> int:
    return -(-size // _HEADER) * _HEADER


def _number_in(field: bytes) -> int:
    if field[0] & 0x80:  # large ones are binary
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def _size_in(header: bytes) -> int:
    return _number_in(header[124:136])


def _checksum_in(field: bytes) -> int:
    try:
        return _number_in(field)
    except ValueError:
        return -1


def _name_in(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _told_by(text: bytes) -> dict[str, Any]:
    """Returns what a header of pax tells of the member behind it."""
    told: dict[str, Any] = {}
    while text[:1].isdigit():
        size = int(text.split(b" ", 1)[0])
        name, _, value = text[:size].split(b" ", 1)[1].partition(b"=")
        if name == b"path":
            told["path"] = value.rstrip(b"\n")
        elif name == b"size":
            told["size"] = int(value)
        text = text[size:]
    return told


def _split(path: bytes) -> tuple[bytes, str]:
    """Returns the key of a member, and what it is of the row."""
    begin = path.rfind(b"/") + 1
    stem, _, suffix = path[begin:].partition(b".")
    return path[:begin] + stem, suffix.decode()
