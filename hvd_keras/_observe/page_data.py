"""What the report page shows: plain lists and numbers, for JSON."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvd_keras._observe.advice import advise
from hvd_keras._observe.analysis import Analysis
from hvd_keras._observe.intervals import Array
from hvd_keras._observe.late_ranks import may_read_in_steps
from hvd_keras._observe.recording import DTYPES, KINDS
from hvd_keras._observe.time_parts import PARTS

MAX_ROWS = 64  # of a chart; more ranks are put together
NUM_TENSORS = 10


def page_data(
    analysis: Analysis, copy_bytes_a_second: float | None = None
) -> dict[str, Any]:
    """Returns the data of the page.

    Args:
        analysis: What the recording says.
        copy_bytes_a_second: How fast one core of the job's host copies
            memory, if it was measured.
    """
    kind, groups = group_ranks(analysis)
    data = {
        "summary": _summary(analysis),
        "advice": [vars(one) for one in advise(analysis)],
        "parts": _parts(analysis, kind, groups),
        "last": _last(analysis),
        "speeds": _speeds(analysis, copy_bytes_a_second),
        "tensors": _tensors(analysis),
        "fusion": _fusion(analysis),
        "heat": _heat(analysis, kind, groups),
        "hosts": _hosts(analysis),
        "settings": _settings(analysis),
    }
    found: dict[str, Any] = _plain(data)
    return found


def group_ranks(analysis: Analysis) -> tuple[str, list[tuple[str, list[int]]]]:
    """Returns what a row of a chart is, and the rows: label, rank indices.

    A row is a rank, a host if there are too many ranks, or neighbouring ranks
    if there are too many hosts.
    """
    ranks = analysis.recording.ranks
    if len(ranks) <= MAX_ROWS:
        return "rank", [(str(one.rank), [i]) for i, one in enumerate(ranks)]
    hosts: dict[str, list[int]] = {}
    for index, one in enumerate(ranks):
        hosts.setdefault(one.host, []).append(index)
    if len(hosts) <= MAX_ROWS:
        return "host", list(hosts.items())
    width = -(-len(ranks) // MAX_ROWS)
    chunks = [
        list(range(begin, min(begin + width, len(ranks))))
        for begin in range(0, len(ranks), width)
    ]
    return "ranks", [
        (f"{ranks[one[0]].rank}-{ranks[one[-1]].rank}", one) for one in chunks
    ]


def rank_ranges(ranks: Iterable[int]) -> str:
    """Returns ranks in short: "0-3, 7"."""
    texts: list[list[int]] = []
    for rank in sorted(ranks):
        if texts and texts[-1][1] == rank - 1:
            texts[-1][1] = rank
        else:
            texts.append([rank, rank])
    return ", ".join(
        str(begin) if begin == end else f"{begin}-{end}" for begin, end in texts
    )


def _plain(value: Any) -> Any:
    """`value` in what JSON has; nan becomes None."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"({index})"


def _summary(analysis: Analysis) -> dict[str, Any]:
    recording = analysis.recording
    rows = analysis.collectives.rows
    span = rows["ended_ns"].max() - rows["first_ns"].min() if len(rows) else 0
    first = recording.ranks[0]
    return {
        "command": first.command,
        "began_unix_s": min(one.began_unix_ns for one in recording.ranks)
        // 10**9,
        "size": recording.size,
        "num_recorded": len(recording.ranks),
        "num_hosts": len({one.host for one in recording.ranks}),
        "has_steps": analysis.time.has_steps,
        "reads_in_steps": may_read_in_steps(analysis),
        "num_steps": analysis.num_steps,
        "step_ms": analysis.step_ns / 1e6,
        "efficiency": analysis.efficiency,
        "num_collectives": len(rows),
        "span_s": span / 1e9,
        "clock_error_ms": analysis.clock_error_ns / 1e6,
        "shares": {name: analysis.share(name) for name in PARTS},
    }


def _parts(
    analysis: Analysis, kind: str, groups: list[tuple[str, list[int]]]
) -> dict[str, Any]:
    ms = analysis.mean_parts_ns / 1e6
    ranks = analysis.recording.ranks
    return {
        "kind": kind,
        "names": PARTS,
        "groups": [
            {
                "label": label,
                "ranks": rank_ranges(ranks[i].rank for i in members),
                "ms": ms[members].mean(0),
            }
            for label, members in groups
        ],
        "rows": [
            {"rank": one.rank, "host": one.host, "ms": ms[index]}
            for index, one in enumerate(ranks)
        ],
    }


def _last(analysis: Analysis) -> dict[str, Any]:
    last = analysis.last
    units = max(last.num_units, 1)
    rows = []
    for index, one in enumerate(analysis.recording.ranks):
        times = int(last.times_last[index])
        rows.append(
            {
                "rank": one.rank,
                "host": one.host,
                "pid": one.pid,
                "times": times,
                "share": times / units,
                "late_ms": last.late_ns[index] / max(times, 1) / 1e6,
                "total_ms": last.late_ns[index] / 1e6,
                "input_ms": analysis.part("input")[index] / 1e6,
                "compute_ms": analysis.part("compute")[index] / 1e6,
            }
        )
    return {
        "unit": last.unit,
        "num_units": last.num_units,
        "num_close": last.num_close,
        "rows": rows,
    }


def _speeds(analysis: Analysis, copy: float | None) -> dict[str, Any]:
    best = max((one.median for one in analysis.speeds), default=math.nan)
    return {
        "best": best,
        "copy": copy,
        "rows": [
            {
                "kind": _name(KINDS, one.kind) + " (GPU)" * one.on_gpu,
                "num_collectives": one.num_collectives,
                "num_bytes": one.num_bytes,
                "slow": one.slow,
                "median": one.median,
                "fast": one.fast,
                "of_best": one.median / best,
            }
            for one in analysis.speeds
        ],
    }


def _tensors(analysis: Analysis) -> dict[str, Any]:
    return {
        "num_names": len(analysis.tensors),
        "rows": [
            {
                "name": one.name,
                "kind": _name(KINDS, one.kind),
                "dtype": _name(DTYPES, one.dtype),
                "num_tensors": one.num_tensors,
                "num_bytes": one.num_bytes,
                "calls": one.calls_a_step,
                "running_ms": one.running_ns_a_step / 1e6,
                "wait_ms": one.wait_ns_a_step / 1e6,
            }
            for one in analysis.tensors[:NUM_TENSORS]
        ],
    }


def _fusion(analysis: Analysis) -> dict[str, Any]:
    fusion = analysis.fusion
    return {
        "collectives_a_step": fusion.collectives_a_step,
        "calls_a_collective": fusion.calls_a_collective,
        "tensors_a_collective": fusion.tensors_a_collective,
        "median_bytes": fusion.median_bytes,
        "rows": [
            {
                "label": str(low) if low == high else f"{low}-{high}",
                "count": count,
            }
            for (low, high), count in zip(
                fusion.bounds, fusion.counts, strict=True
            )
        ],
    }


def _heat(
    analysis: Analysis, kind: str, groups: list[tuple[str, list[int]]]
) -> dict[str, Any]:
    late = analysis.heat.late_ns / 1e6
    return {
        "kind": kind,
        "edges_s": analysis.heat.edges_ns / 1e9,
        "rows": [
            {"label": label, "ms": _worst(late[members])}
            for label, members in groups
        ],
    }


def _worst(rows: Array) -> Array:
    """The largest of each column, nan where there is none."""
    some: Array = np.where(np.isnan(rows), -1, rows).max(0)
    return np.where(some < 0, np.nan, some)


def _hosts(analysis: Analysis) -> list[dict[str, Any]]:
    hosts = collections.defaultdict(list)
    for one in analysis.recording.ranks:
        hosts[one.host].append(one)
    return [
        {
            "host": host,
            "ranks": rank_ranges(one.rank for one in ranks),
            "clock_error_ms": max(one.clock_error_ns for one in ranks) / 1e6,
            "wire": analysis.wire_share.get(host),
        }
        for host, ranks in hosts.items()
    ]


def _settings(analysis: Analysis) -> list[dict[str, str]]:
    """A row a setting and value: ranks mostly agree."""
    values: dict[tuple[str, str], list[int]] = {}
    for one in analysis.recording.ranks:
        for name, value in one.settings.items():
            values.setdefault((name, value), []).append(one.rank)
    everyone = len(analysis.recording.ranks)
    return [
        {
            "name": name,
            "value": value,
            "ranks": "all" if len(ranks) == everyone else rank_ranges(ranks),
        }
        for (name, value), ranks in sorted(values.items())
    ]
