"""Whatever is in a folder, the tools say what it is, or why they cannot.

Records come from other hosts and other users. `hvd-doctor`, `hvd-report` and
`hvd-trace` end soon, in a known way, and print nothing that steers a terminal.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import changed, run_cases

from hvd_keras._observe import command, recording, report, trace

MOST_SECONDS = 10.0
MOST_BYTES = 400 << 20
_NAME, _HEADER, _ADMITTED, _NEGOTIATED, _BEGUN, _ENDED = range(1, 7)
_PHASE, _STEP, _CLOCK, _DROPPED = range(7, 11)
# What no field of a record is.
NONSENSE: list[Any] = [
    None, True, -1, 0, 0.5, 1e308, 10**9, 1 << 64, -(1 << 63), 10**30, "",
    "x", "\x1b]0;title\x07", "\ud800", "\u202e", "a\nb", [], [[]], {}, {"": 1},
    "n" * 5000, ["a", 1, None], {"rank": {}},
]  # fmt: skip
# What `json` writes for none of these values.
RAW = (
    b"1e309",
    b"-1e309",
    b"NaN",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 9999,
)


def _flight(rank: int) -> list[dict[str, Any]]:
    header = {
        "flight_record": 1, "rank": rank, "size": 2, "host": f"h{rank}",
        "pid": 40 + rank, "reason": "SIGUSR2", "steps": 3,
        "monotonic_ns": 9 * 10**9, "unix_ns": 1_700_000_009 * 10**9,
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "number": n, "kind": "allreduce", "name": f"t{n % 3}",
            "process_set": 0, "id": n, "op": "Sum", "dtype": "float32",
            "shape": [2, 3], "tensors": 1, "bytes": 24, "state": "done",
            "enqueued_ns": n * 10**8, "negotiated_ns": n * 10**8 + 10,
            "begun_ns": n * 10**8 + 20, "ended_ns": n * 10**8 + 30,
            "last_rank": rank, "late_ns": 5,
        }
        for n in range(1, 9)
    ]  # fmt: skip
    if rank:
        rows[-1].update(state="failed", error="Mismatch", shape=[9])
    return [header, *rows]


def _records(rng: random.Random) -> dict[str, list[Any]]:
    """Returns the JSON files of a job; those of lines have several values."""
    rows = [
        {
            "rank": rank, "host": f"h{rank}", "pid": 40 + rank,
            "exit_status": rank, "signal": "", "was_ended": False,
            "told": "ValueError: no" * rank, "is_lost": False,
        }
        for rank in range(2)
    ]  # fmt: skip
    job = {"size": 2, "leavers": [1, 0], "ranks": rows}
    found: dict[str, list[Any]] = {"job.json": [job]}
    for rank in range(2):
        found[f"flight_rank_{rank}.jsonl"] = _flight(rank)
        identity = {"rank": rank, "size": 2, "host": "h", "foreign": ["/usr/"]}
        found[f"identity_rank_{rank}.json"] = [identity]
        found[f"process_rank_{rank}.json"] = [{"pid": 4, "state": "S"}]
    if rng.random() < 0.5:
        del found["job.json"]
    return found


def _swapped(value: Any, rng: random.Random) -> Any:
    """`value` with something else at one place of it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _swapped(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _swapped(value[at], rng), *value[at + 1 :]]
    return rng.choice(NONSENSE)


def _text(values: list[Any], rng: random.Random, is_mutated: bool) -> bytes:
    if is_mutated and rng.random() < 0.7:
        at = rng.randrange(len(values))
        values = [*values[:at], _swapped(values[at], rng), *values[at + 1 :]]
    text = "\n".join(map(json.dumps, values)).encode()
    if is_mutated and rng.random() < 0.2:
        numbers = [at for at, c in enumerate(text) if 48 <= c < 58]
        at = rng.choice(numbers) if numbers else 0
        text = text[:at] + rng.choice(RAW) + text[at + 1 :]
    return changed(text, rng) if is_mutated and rng.random() < 0.4 else text


def _write_evidence(folder: Path, rng: random.Random) -> None:
    records = _records(rng)
    mutated = rng.sample(sorted(records), rng.randint(1, 3))
    for name, values in records.items():
        (folder / name).write_bytes(_text(values, rng, name in mutated))
    line = b'  File "/home/me/%s.py", line %s in f\n' % (
        rng.choice((b"a", b"\x1b[2J", b"\xff")),
        rng.choice((b"7", b"9" * 5000, b"\xd9\xa1")),
    )
    stack = b"Current thread 0x1 (most recent call first):\n" + line
    error = b"Traceback (most recent call last):\n" + line.replace(
        b" in", b", in"
    )
    (folder / "stacks_rank_0.txt").write_bytes(changed(stack, rng))
    (folder / "error_rank_1.txt").write_bytes(changed(error, rng))


def _texts(number: int, key: int, text: bytes) -> bytes:
    parts = [text[at : at + 56] for at in range(0, len(text), 56)]
    return b"".join(
        bytes([number, len(part), 0, 0])
        + key.to_bytes(4, "little")
        + part.ljust(56, b"\0")
        for part in parts
    )


def _timeline(rank: int, rng: random.Random, is_mutated: bool) -> bytes:
    header: Any = {
        "version": 1, "rank": rank, "size": 2, "host": f"h{rank}", "pid": 7,
        "clock": str(rank), "monotonic_ns": 10**9, "unix_ns": 17 * 10**17,
        "settings": {"backend": "jax", "mark_cycles": "1"},
    }  # fmt: skip
    text = _text([header], rng, is_mutated and rng.random() < 0.5)
    start = _texts(_HEADER, 0, text[:5000])
    start += _texts(_NAME, 0, b"loss") + _texts(_NAME, 1, b"\x1b]0;x\x07")
    rows = []
    for n in range(1, 20):
        at = 10**9 + n * 10**7
        for kind, time_ns, other_ns in (
            (_ADMITTED, at, 0),
            (_NEGOTIATED, at + 10, 5),
            (_BEGUN, at + 20, 0),
            (_ENDED, at + 10**6 * (1 + rank), 0),
            (_PHASE, at + 30, at + 40),
            (_STEP, at - 5, at + 2 * 10**6),
        ):
            rows.append((kind, time_ns, n, other_ns, n % 2))
    rows.append((_CLOCK, 10**9, 0, 50, 0))
    rows.append((_DROPPED, 10**9, 0, 0, 0))
    records = np.zeros(len(rows), recording._RECORD)
    for index, field in enumerate(("type", "time_ns", "number", "other_ns")):
        records[field] = [row[index] for row in rows]
    records["collective_id"] = records["number"]
    records["name"] = [row[4] for row in rows]
    records["num_bytes"], records["num_tensors"] = 4096, 1
    if is_mutated and rng.random() < 0.7:
        for _ in range(rng.randint(1, 4)):
            field = rng.choice(recording._RECORD.names)
            width = recording._RECORD[field].itemsize
            raw = rng.choice((b"\xff", b"\x7f", b"\x80", b"\0")) * width
            value = np.frombuffer(raw, recording._RECORD[field])[0]
            some = (
                slice(None) if rng.random() < 0.3 else rng.randrange(len(rows))
            )
            records[field][some] = value
    data = start + records.tobytes()
    return changed(data, rng) if is_mutated and rng.random() < 0.5 else data


def _write_timeline(folder: Path, rng: random.Random) -> None:
    mutated = rng.choice(((0,), (1,), (0, 1)))
    for rank in range(2):
        data = _timeline(rank, rng, rank in mutated)
        (folder / recording.file_name(rank)).write_bytes(data)


def _doctor(folder: Path, rng: random.Random) -> int:
    return command.main([str(folder), *(["--json"] * rng.randrange(2))])


def _report(folder: Path, rng: random.Random) -> int:
    return report.main([str(folder), "-o", str(folder / "page.html")])


def _trace(folder: Path, rng: random.Random) -> int:
    return trace.main(["merge", str(folder)])


TOOLS: dict[str, tuple[Callable[..., None], Callable[..., int]]] = {
    "hvd-doctor": (_write_evidence, _doctor),
    "hvd-report": (_write_timeline, _report),
    "hvd-trace": (_write_timeline, _trace),
}


def _check_said(name: str, out: str, err: str) -> None:
    for text in (out, err):
        assert all(line.isprintable() for line in text.split("\n"))
    for line in err.splitlines():
        assert line.startswith(f"{name}: "), err


@pytest.mark.parametrize(
    "count", [25, pytest.param(2000, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.filterwarnings("error")
def test_tools_take_any_record(
    name: str,
    count: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write, run = TOOLS[name]
    statuses = set()

    def case(rng: random.Random) -> None:
        for path in tmp_path.iterdir():
            path.unlink()
        write(tmp_path, rng)
        began = time.monotonic()
        statuses.add(run(tmp_path, rng))
        assert time.monotonic() - began < MOST_SECONDS
        _check_said(name, *capsys.readouterr())

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_cases(case, count)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) << 10 < MOST_BYTES
    assert statuses <= {0, 1, 2}
    assert 0 in statuses
