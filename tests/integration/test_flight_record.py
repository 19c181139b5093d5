"""Each rank writes its last collectives after a failure and on SIGUSR2."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import hvd_keras as hvd

RANK = pathlib.Path(__file__).with_name("flight_rank.py")


def run(what: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "hvd_keras.run", "-np", "2", "--"]
    return subprocess.run(
        [*launch, sys.executable, str(RANK), what],
        env={**os.environ, "HVD_FLIGHT_RECORD_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *records = map(json.loads, path.read_text().splitlines())
    return header, records


@pytest.mark.parametrize("what", ["death", "exception"])
def test_survivors_write_what_failed(what: str, tmp_path: pathlib.Path) -> None:
    assert run(what, tmp_path).returncode != 0
    header, records = read(tmp_path / "flight_rank_0.jsonl")
    assert (header["rank"], header["size"]) == (0, 2)
    *_, first, second = records
    assert (first["name"], first["state"]) == ("first", "done")
    assert (first["dtype"], first["shape"]) == ("float32", [4])
    assert first["enqueued_ns"] <= first["begun_ns"] <= first["ended_ns"]
    assert second["name"] == "second"
    assert (second["state"], second["error"]) == ("failed", "PeerLost")


def test_a_rank_that_fails_by_itself_writes_why(
    tmp_path: pathlib.Path,
) -> None:
    run("exception", tmp_path)
    header, records = read(tmp_path / "flight_rank_1.jsonl")
    assert header["reason"] == "ValueError: a user's mistake"
    assert records[-1]["name"] == "first"


def test_a_signal_shows_where_each_rank_is(tmp_path: pathlib.Path) -> None:
    job = run("signal", tmp_path)
    assert job.returncode == 0, job.stderr
    # Rank 0 waits in native code, where Python's handlers do not run.
    _, records = read(tmp_path / "flight_rank_0.jsonl")
    assert records[-1]["name"] == "second"
    assert records[-1]["state"] == "waiting"
    assert "ended_ns" not in records[-1]
    _, records = read(tmp_path / "flight_rank_1.jsonl")
    assert records[-1]["name"] == "first"
    assert "in reduce" in (tmp_path / "stacks_rank_0.txt").read_text()
    assert "in look_at_all" in (tmp_path / "stacks_rank_1.txt").read_text()


def test_a_rank_that_works_survives_being_asked(tmp_path: pathlib.Path) -> None:
    job = run("work", tmp_path)
    assert job.returncode == 0, job.stderr
    for rank in range(2):
        stacks = (tmp_path / f"stacks_rank_{rank}.txt").read_text()
        assert stacks.count("in is_asked_while_it_works") > 5


def test_the_record_can_be_asked_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "flight.jsonl"
    hvd.shutdown()  # another test's
    with pytest.raises(hvd.NotInitializedError):
        hvd.dump_flight_record(path)
    hvd.init()
    try:
        hvd.barrier()
        hvd.dump_flight_record(path)
        with pytest.raises(hvd.InternalError, match="No such file"):
            hvd.dump_flight_record(tmp_path / "missing" / "file")
    finally:
        hvd.shutdown()
    header, records = read(path)
    assert header["reason"] == "dump_flight_record() was called"
    assert records[-1]["kind"] == "barrier"
