"""Writes a trace in Chrome's format: JSON, which Perfetto reads too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from hvd_keras._observe.tracks import RankTracks, Track


def write(file: TextIO, ranks: Iterable[RankTracks]) -> None:
    """Writes all ranks: a process each, with a thread for each track.

    Args:
        file: Where to.
        ranks: What to show.
    """
    seen: set[int] = set()
    separator = '{"displayTimeUnit": "ms", "traceEvents": [\n'
    for rank in ranks:
        for event in _events_of(rank, seen):
            file.write(separator + json.dumps(event))
            separator = ",\n"
    file.write("\n]}\n")


def _events_of(rank: RankTracks, seen: set[int]) -> Iterator[dict[str, Any]]:
    pid = rank.rank
    yield _meta("process_name", pid, 0, name=rank.title)
    yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for tid, track in enumerate(rank.tracks, 1):
        yield _meta("thread_name", pid, tid, name=track.name)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
        yield from _slices_of(track, pid, tid, seen)
    for counter in rank.counters:
        for time, value in zip(counter.times_ns, counter.values, strict=True):
            yield {
                "ph": "C",
                "pid": pid,
                "name": counter.name,
                "ts": int(time) / 1e3,
                "args": {counter.unit: int(value)},
            }
    for time in rank.marks_ns:
        yield {
            "ph": "i",
            "pid": pid,
            "tid": 0,
            "s": "p",
            "name": "cycle",
            "ts": time / 1e3,
        }


def _slices_of(
    track: Track, pid: int, tid: int, seen: set[int]
) -> Iterator[dict[str, Any]]:
    for one in track.slices:
        place = {"pid": pid, "tid": tid, "ts": one.begin_ns / 1e3}
        yield {
            **place,
            "ph": "X",
            "name": one.name,
            "cat": track.name,
            "dur": (one.end_ns - one.begin_ns) / 1e3,
            "args": one.arguments,
        }
        if one.flow:
            # An arrow starts on the first rank and passes through the others.
            first = one.flow not in seen
            seen.add(one.flow)
            yield {
                **place,
                "ph": "s" if first else "t",
                "id": one.flow,
                "name": "collective",
                "cat": "flow",
            }


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": arguments}
