"""Writes a trace in Perfetto's format, by the package `perfetto`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, BinaryIO

from hvd_keras._observe.recording import Recording
from hvd_keras._observe.tracks import Counter, RankTracks, Track

_PACKETS_AT_ONCE = 4096
_RAW_CLOCK = 64  # the first number for clocks of a sequence
_BOOTTIME = 6  # the clock of a trace


def write(file: BinaryIO, job: Recording, ranks: Iterable[RankTracks]) -> None:
    """Writes all ranks: a process each.

    Args:
        file: Where to.
        job: Whose clocks these are.
        ranks: What to show.

    Raises:
        ModuleNotFoundError: The package is missing.
    """
    writer = _Writer(file)
    raw = {rank.rank: rank for rank in job.ranks}
    for rank in ranks:
        writer.add(rank, raw[rank.rank].clock_offset_ns)
    writer.flush()


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        # No other module may need what few have installed.
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self._protos: Any = perfetto_trace_pb2
        self._file = file
        self._trace = self._protos.Trace()
        self._uuids = itertools.count(1)
        self._sequence = 0  # of the rank
        self._has_begun = False  # that sequence

    def add(self, rank: RankTracks, clock_offset_ns: int) -> None:
        self._sequence = rank.rank + 1
        self._has_begun = False
        process = next(self._uuids)
        self._add_clock(rank, clock_offset_ns)
        packet = self._packet()
        packet.track_descriptor.uuid = process
        packet.track_descriptor.process.pid = rank.rank + 1
        packet.track_descriptor.process.process_name = rank.title
        # Tracks of one name that stand together are shown as one.
        for order, track in enumerate(rank.tracks):
            self._add_track(track, process, order)
        for order, counter in enumerate(rank.counters, len(rank.tracks)):
            self._add_counter(counter, process, order)
        if rank.marks_ns:
            marks = self._add_descriptor("cycles", process, len(rank.tracks))
            for time in rank.marks_ns:
                event = self._event(time, "TYPE_INSTANT", marks)
                event.name = "cycle"

    def flush(self) -> None:
        self._file.write(self._trace.SerializeToString())
        self._trace.Clear()

    def _packet(self) -> Any:
        if len(self._trace.packet) >= _PACKETS_AT_ONCE:
            self.flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = self._sequence
        if not self._has_begun:
            packet.sequence_flags = (
                self._protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            )
            self._has_begun = True
        return packet

    def _add_clock(self, rank: RankTracks, offset_ns: int) -> None:
        """Notes the rank's own clock beside that of the trace."""
        times = [s.begin_ns for track in rank.tracks for s in track.slices]
        if not times:
            return
        packet = self._packet()
        packet.timestamp = min(times)
        for number, time in (
            (_BOOTTIME, min(times)),
            (_RAW_CLOCK, max(0, min(times) - offset_ns)),
        ):
            clock = packet.clock_snapshot.clocks.add()
            clock.clock_id = number
            clock.timestamp = time

    def _add_descriptor(self, name: str, parent: int, order: int) -> int:
        packet = self._packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = next(self._uuids)
        descriptor.parent_uuid = parent
        descriptor.name = name
        descriptor.sibling_order_rank = order
        return int(descriptor.uuid)

    def _event(self, time: int, kind: str, uuid: int) -> Any:
        packet = self._packet()
        packet.timestamp = time
        event = packet.track_event
        event.type = getattr(self._protos.TrackEvent, kind)
        event.track_uuid = uuid
        return event

    def _add_track(self, track: Track, process: int, order: int) -> None:
        uuid = self._add_descriptor(track.name, process, order)
        open_ends: list[int] = []
        for one in track.slices:
            while open_ends and open_ends[-1] <= one.begin_ns:
                self._event(open_ends.pop(), "TYPE_SLICE_END", uuid)
            event = self._event(one.begin_ns, "TYPE_SLICE_BEGIN", uuid)
            event.name = one.name
            event.categories.append(track.name)
            if one.flow:
                event.flow_ids.append(one.flow)
            for key, value in one.arguments.items():
                note = event.debug_annotations.add()
                note.name = key
                if isinstance(value, int):
                    note.int_value = value
                else:
                    note.string_value = value
            open_ends.append(one.end_ns)
        while open_ends:
            self._event(open_ends.pop(), "TYPE_SLICE_END", uuid)

    def _add_counter(self, counter: Counter, process: int, order: int) -> None:
        uuid = self._add_descriptor(counter.name, process, order)
        descriptor = self._trace.packet[-1].track_descriptor
        units = self._protos.CounterDescriptor
        descriptor.counter.unit = (
            units.UNIT_SIZE_BYTES
            if counter.unit == "bytes"
            else units.UNIT_COUNT
        )
        for time, value in zip(counter.times_ns, counter.values, strict=True):
            event = self._event(int(time), "TYPE_COUNTER", uuid)
            event.counter_value = int(value)
