"""Each rank writes a timeline; they make one trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
from elastic_jobs import ElasticJob, kill

import hvd_keras as hvd
from hvd_keras._observe import recording, trace, tracks
from hvd_keras._observe.recording import KINDS, PHASES, STATES, Recording

RANK = Path(__file__).with_name("timeline_rank.py")


def run(what: str, folder: Path, *options: str) -> jobs.Outcome:
    command = [sys.executable, str(RANK), what]
    return jobs.run(
        "-np", "2", "--timeline", str(folder), *options, "--", *command,
        environ=jobs.clean_environ(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a job has recorded a `fit`."""
    found = tmp_path_factory.mktemp("timeline") / "new"
    job = run("fit", found, "--timeline-mark-cycles")
    assert job.status == 0, job.stderr
    assert "open it at https://ui.perfetto.dev" in job.stderr
    return found


@pytest.fixture(scope="module")
def job(folder: Path) -> Recording:
    return recording.read(folder)


def calls_named(job: Recording, rank: int, name: str) -> np.ndarray:
    one = job.ranks[rank]
    return one.calls[one.calls["name"] == one.names.index(name)]


def test_all_ranks_have_all_calls(job: Recording) -> None:
    assert job.size == 2
    assert [rank.rank for rank in job.ranks] == [0, 1]
    for rank in range(2):
        small = calls_named(job, rank, "small")
        assert len(small) == 3
        assert (small["state"] == STATES.index("done")).all()
        assert (small["kind"] == KINDS.index("allreduce")).all()
        assert (small["num_bytes"] == 16).all()
        for earlier, later in (
            ("enqueued_ns", "negotiated_ns"),
            ("negotiated_ns", "begun_ns"),
            ("begun_ns", "ended_ns"),
        ):
            assert (small[earlier] <= small[later]).all()
        assert not job.ranks[rank].num_dropped
        assert job.ranks[rank].settings["cores"]
    ids = [calls_named(job, rank, "small")["collective_id"] for rank in (0, 1)]
    assert (ids[0] == ids[1]).all()


def test_the_coordinator_knows_who_was_last(job: Recording) -> None:
    small = calls_named(job, 0, "small")
    assert (small["last_rank"] == 1).all()
    assert (small["late_ns"] > 10e6).all()
    assert (calls_named(job, 1, "small")["last_rank"] == -1).all()


def test_phases_are_within_their_collective(job: Recording) -> None:
    for rank in job.ranks:
        number = calls_named(job, rank.rank, "large_0")["collective_id"][0]
        call = calls_named(job, rank.rank, "large_0")[0]
        phases = rank.phases[rank.phases["collective_id"] == number]
        kinds = {PHASES[kind] for kind in phases["kind"]}
        assert kinds == {"pack", "reduce", "copy"}
        assert (phases["begin_ns"] >= call["begun_ns"]).all()
        assert (phases["end_ns"] <= call["ended_ns"]).all()
        assert (phases["begin_ns"] <= phases["end_ns"]).all()
        # Of two ranks, each packs the half that the other one reduces.
        for kind, name in enumerate(PHASES):
            num_bytes = phases["num_bytes"][phases["kind"] == kind].sum()
            assert num_bytes == (0 if name == "wire" else 2 << 20)


def test_steps_of_fit_are_there(job: Recording) -> None:
    for rank in job.ranks:
        assert rank.steps["epoch"].tolist() == [0, 0, 1, 1]
        assert rank.steps["step"].tolist() == [1, 2, 3, 4]
        assert (rank.steps["begin_ns"] < rank.steps["end_ns"]).all()


def test_nothing_ends_before_its_last_rank_has_come(job: Recording) -> None:
    assert tracks.early_ends(job) == []
    # It would be found: move one rank's clock.
    late = job.ranks[1]
    calls = late.calls.copy()
    for name in ("enqueued_ns", "ended_ns"):
        calls[name] += int(1e9)
    moved = recording.dataclasses.replace(late, calls=calls)
    assert tracks.early_ends(Recording([job.ranks[0], moved], 2))


def test_tracks_show_waiting_and_counters(job: Recording) -> None:
    first, second = tracks.of(job)
    waits = [t for t in first.tracks if t.name == "wait for the last rank"]
    small = [s for t in waits for s in t.slices if s.name == "small"]
    assert len(small) == 3
    assert all(s.end_ns - s.begin_ns > 10e6 for s in small)
    for rank in (first, second):
        names = {track.name for track in rank.tracks}
        assert {"steps", "negotiate", "collectives", "pack", "reduce",
                "copy"} <= names  # fmt: skip
        assert rank.marks_ns
        for counter in rank.counters:
            assert (counter.values >= 0).all()
            assert counter.values.max() > 0
            assert counter.values[-1] == 0


def check_flows(events: dict[int, list[int]], job: Recording) -> None:
    """Checks that each collective of the job is connected on all ranks."""
    for rank in job.ranks:
        begun = rank.calls[rank.calls["begun_ns"] > 0]
        for call in begun:
            flow = tracks.flow_of(
                (int(call["process_set"]), int(call["collective_id"]))
            )
            assert sorted(events[flow]) == [0, 1]


def test_the_json_trace_connects_all_ranks(
    folder: Path, job: Recording, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    assert trace.main(["merge", str(folder), "-o", str(path)]) == 0
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    flows: dict[int, list[int]] = {}
    for event in events:
        if event["ph"] in "st":
            flows.setdefault(event["id"], []).append(event["pid"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
    check_flows(flows, job)


def test_a_killed_rank_leaves_what_it_had(tmp_path: Path) -> None:
    outcome = run("death", tmp_path)
    assert outcome.status != 0
    assert "job.json: open it at" in outcome.stderr
    job = recording.read(tmp_path)
    assert len(calls_named(job, 1, "small")) == 3
    assert calls_named(job, 0, "never")["state"] == STATES.index("failed")
    # Wherever it ends:
    path = tmp_path / recording.file_name(1)
    whole = path.read_bytes()
    for length in (0, 10, 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        trace.merge(tmp_path, str(tmp_path / "job.json"))


def test_members_that_change_replace_no_timeline(tmp_path: Path) -> None:
    folder = tmp_path / "timelines"
    old = folder / "epoch_9"
    old.mkdir(parents=True)
    (old / recording.file_name(0)).touch()  # of an earlier job
    options = ["-np", "2", "--min-np", "1", "--restart-delay", "0",
               "--timeline", str(folder)]  # fmt: skip
    with ElasticJob(tmp_path, *options) as job:
        generations = [job.wait_for_generation(1, 2)]
        written = [folder / recording.file_name(rank) for rank in (0, 1)]
        jobs.wait_for(lambda: all(path.stat().st_size for path in written))
        kill(generations[0][0])
        generations.append(job.wait_for_size(2, after=1))
        assert job.end() == 0, job.text
    for places in generations:
        number = places[0].generation
        inner = folder if number == 1 else folder / f"epoch_{number}"
        found = recording.read(inner)
        assert [r.pid for r in found.ranks] == [p.pid for p in places]
        assert list(inner.glob("job.*"))
    assert list((folder / "member_2").iterdir())
    assert not list(old.iterdir())


def test_it_starts_and_stops_at_any_time(tmp_path: Path) -> None:
    hvd.shutdown()  # another test's
    with pytest.raises(hvd.NotInitializedError):
        hvd.start_timeline(tmp_path)
    hvd.init()
    try:
        hvd.stop_timeline()
        hvd.barrier(name="before")
        hvd.start_timeline(tmp_path, mark_cycles=True)
        with pytest.raises(ValueError, match="already"):
            hvd.start_timeline(tmp_path)
        hvd.barrier(name="within")
        hvd.stop_timeline()
        hvd.barrier(name="after")
    finally:
        hvd.shutdown()
    folder = next(path.parent for path in tmp_path.rglob("*.hvdtrace"))
    (rank,) = recording.read(folder).ranks
    assert rank.names[:-1] == ["within"]
    assert rank.settings["mark_cycles"] == "1"


def test_a_folder_without_timelines_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trace.main(["merge", str(tmp_path)]) == 1
    assert "must hold files timeline_rank_0.hvdtrace" in capsys.readouterr().err
    (tmp_path / recording.file_name(0)).write_bytes(b"x" * 640)
    with pytest.raises(recording.RecordingError, match="must be a timeline"):
        recording.read(tmp_path)
