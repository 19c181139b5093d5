"""States of a training run in host memory, which all ranks have or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras._values import checksums, object_format
from hvd_keras.reduce_op import Min

Array = np.ndarray[Any, Any]
# The membership in which a commit was made, and its place there. A commit of a
# later membership is the newer one.
Number = tuple[int, int]


@dataclasses.dataclass
class Commit:
    """The state of one rank after a step that all ranks have done."""

    number: Number
    header: bytes  # an object, as `object_format` encodes it
    data: Array  # bytes
    checksum: int
    # Whether a thread writes it to disk, so that the memory must stay.
    is_in_use: bool = False

    @classmethod
    def of(cls, number: Number, header: bytes, data: Array) -> Commit:
        """Makes a commit of its parts."""
        return cls(number, header, data, _checksum(header, data))

    def is_whole(self) -> bool:
        """Whether the memory still holds what was put there."""
        return self.checksum == _checksum(self.header, self.data)

    def read_header(self) -> dict[str, Any]:
        """Returns what the rank has noted beside the data."""
        header: dict[str, Any] = object_format.decode(self.header)
        return header


class Commits:
    """Keeps the newest commits of this rank.

    A rank writes its state beside its last commit, then tells the others. When
    a rank has heard that all have written, it may overwrite the one before. So
    at any moment all ranks have a commit in common: a rank that has heard has
    the new one, and so have all others, which wrote it before. `held` tells
    which ones this rank has; the newest that all survivors have is theirs.
    """

    def __init__(self) -> None:
        self._agreed: Commit | None = None
        self._prepared: Commit | None = None
        self._spare: Commit | None = None  # its memory is used next

    @property
    def newest(self) -> Commit | None:
        """The last commit of which this rank knows that all ranks have it."""
        return self._agreed

    def add(
        self, number: Number, header: dict[str, Any], parts: Sequence[Array]
    ) -> bool:
        """Keeps a state. All ranks call it after the same step.

        Args:
            number: The number of the commit; larger than those before.
            header: Anything that `broadcast_object` takes.
            parts: Arrays of bytes, which are copied.

        Returns:
            Whether all ranks have it. If a rank had no memory for it, none has.

        Raises:
            PeerLostError: A rank was lost. `held` says what this one has.
        """
        try:
            self._prepared = self._written(number, header, parts)
        except MemoryError:
            self._prepared = None
        has_written = np.array([self._prepared is not None], np.uint8)
        ((all_have,),) = _native.core().allreduce(
            "elastic/commit", [has_written], int(Min)
        )
        if all_have and self._prepared is not None:
            self._spare = self._agreed
            self._agreed = self._prepared
        self._prepared = None
        return bool(all_have)

    def held(self) -> list[Number]:
        """Returns the numbers of the whole commits that this rank has."""
        both = (self._agreed, self._prepared)
        return [each.number for each in both if each and each.is_whole()]

    def choose(self, number: Number) -> Commit:
        """Returns the commit of that number, and forgets the others."""
        both = (self._agreed, self._prepared)
        chosen = next(each for each in both if each and each.number == number)
        self.put(chosen)
        return chosen

    def put(self, commit: Commit) -> None:
        """Keeps a commit that came from elsewhere, and no other."""
        self._agreed, self._prepared = commit, None
        self._spare = None

    def _written(
        self, number: Number, header: dict[str, Any], parts: Sequence[Array]
    ) -> Commit:
        spare, self._spare = self._spare, None
        num_bytes = sum(part.nbytes for part in parts)
        if (
            spare is None
            or spare.is_in_use
            or spare.data.nbytes != num_bytes
            or not spare.data.flags.writeable
        ):
            data = np.empty(num_bytes, np.uint8)
        else:
            data = spare.data
        begin = 0
        for part in parts:
            data[begin : begin + part.nbytes] = part.reshape(-1)
            begin += part.nbytes
        return Commit.of(number, object_format.encode(header), data)


def _checksum(header: bytes, data: Array) -> int:
    both = (checksums.checksum(data), checksums.checksum(_bytes(header)))
    return both[0] ^ (both[1] << 32)


def _bytes(text: bytes) -> Array:
    return np.frombuffer(text, np.uint8)
