"""The file of a process's records: what was done, in order, with arrays.

`FILE.jsonl` has a line of JSON for each event, `FILE.bin` the bytes of its
arrays. Needs NumPy alone.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NUDGED = "nudged"  # and a number: files of runs that measure rounding

# An array of more elements is kept as the sums of as many parts of it.
MAX_ELEMENTS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that a process did.

    Args:
        kind: "rows", "loss", "gradients", "weights", "results", "draws" or
            "note".
        key: What it is of; with `number` it pairs events of two processes.
        number: How many events of this kind and key came before.
        step: The step, from 1 on; 0: none.
        facts: More about it.
        arrays: By name.
    """

    kind: str
    key: str
    number: int
    step: int
    facts: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def place(self) -> tuple[str, str, int]:
        """What an event of another process has in common with this one."""
        return self.kind, self.key, self.number


class Writer:
    """Writes the events of this process, from any thread."""

    def __init__(self, path: Path) -> None:
        self._lines = path.with_suffix(".jsonl").open("w")
        self._bytes = path.with_suffix(".bin").open("wb")
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()

    def add(
        self,
        kind: str,
        key: str,
        arrays: Mapping[str, Any] | None = None,
        *,
        step: int = 0,
        **facts: Any,
    ) -> None:
        """Writes an event; it is in the file when this returns."""
        with self._lock:
            number = self._counts.get((kind, key), 0)
            self._counts[kind, key] = number + 1
            places = {
                name: self._store(np.asarray(array))
                for name, array in (arrays or {}).items()
            }
            line = [kind, key, number, step, facts, places]
            self._bytes.flush()
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()

    def _store(self, array: Array) -> list[Any]:
        shape, array = list(array.shape), kept(array)
        begin = self._bytes.tell()
        self._bytes.write(np.ascontiguousarray(array).tobytes())
        return [array.dtype.str, list(array.shape), begin, shape]


def kept(array: Array) -> Array:
    """Returns what is kept of an array: its numbers, or sums of parts."""
    if array.dtype.kind not in "biuf":  # bfloat16 and float8 among them
        array = array.astype(np.float32)
    if array.size <= MAX_ELEMENTS:
        return array
    flat = array.reshape(-1).astype(np.float64)
    flat = np.pad(flat, (0, -flat.size % MAX_ELEMENTS))
    return flat.reshape(MAX_ELEMENTS, -1).sum(axis=1)


def read(path: Path) -> list[Event]:
    """Returns the events of a process in their order."""
    lines = path.with_suffix(".jsonl")
    if not lines.exists():
        return []
    data = path.with_suffix(".bin").read_bytes()
    events = []
    for line in lines.read_text().splitlines():
        kind, key, number, step, facts, places = json.loads(line)
        arrays = {
            name: np.frombuffer(
                data, dtype, int(np.prod(shape)), begin
            ).reshape(shape)
            for name, (dtype, shape, begin, _) in places.items()
        }
        events.append(Event(kind, key, number, step, facts, arrays))
    return events
