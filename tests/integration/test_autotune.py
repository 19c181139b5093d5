"""`hvdrun --autotune`: finds settings, tells of them, and keeps them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import jobs
import pytest

_STEPS = """
import os, sys, json
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
hvd.init()
pool = ThreadPoolExecutor(8)

def total(number):
    rows = np.full(100, 1.0 + hvd.rank() + number, np.float32)
    (result,) = _core.allreduce(f"sgd/bucket_{number}", [rows], 1)
    assert (result == hvd.size() * (1.0 + number) + 1.0).all()

for _ in range(int(os.environ["STEPS"])):
    list(pool.map(total, range(8)))
print(json.dumps([list(map(list, _core.tuning_changes())),
                  hvd.autotune_changes()]))
"""
_BAD = "1024,4"


def _run(
    folder: Path, *options: str, steps: int = 170, **environ: str
) -> jobs.Outcome:
    cache, log = folder / "cache", folder / "log.csv"
    outcome = jobs.run_python(
        2,
        _STEPS,
        "--autotune",
        f"--autotune-cache={cache}",
        f"--autotune-log-file={log}",
        *options,
        STEPS=str(steps),
        **environ,
    )
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_a_bad_start_is_left_and_the_next_run_knows(tmp_path: Path) -> None:
    outcome = _run(tmp_path, HVD_AUTOTUNE_START=_BAD)
    assert "autotune: ended after " in outcome.stderr
    assert " times the steps a second of " in outcome.stderr
    # All ranks changed to the same, at the same places.
    assert outcome.lines(0) == outcome.lines(1)
    raw, shown = json.loads(outcome.lines(0)[0])
    assert len(raw) == len(shown) > 10
    numbers = [one["collective"] for one in shown]
    assert numbers == sorted(set(numbers))
    assert shown[-1]["cycle_time_ms"] < 4
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["round"] for row in rows} == {"0", "1", "2", "3", "end"}
    assert rows[0]["fusion_threshold_bytes"] == "1024"
    end = rows[-1]
    assert int(end["fusion_threshold_bytes"]) == raw[-1][1][0]
    assert float(end["cycle_time_ms"]) == shown[-1]["cycle_time_ms"]

    outcome = _run(tmp_path, HVD_AUTOTUNE_START=_BAD, steps=60)
    assert "goes on with what an earlier run has found" in outcome.stderr
    _, again = json.loads(outcome.lines(0)[0])
    assert [one | {"collective": 0} for one in again] == [
        shown[-1] | {"collective": 0}
    ]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1

    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text('{"fusion_threshold_bytes": -1}')
    outcome = _run(tmp_path, HVD_AUTOTUNE_START=_BAD, steps=30)
    assert "makes no sense; it is written anew" in outcome.stderr
    assert "before the search has" in outcome.stderr


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    outcome = _run(
        tmp_path, "--fusion-threshold-mb=1", HOROVOD_CYCLE_TIME="0.5", steps=40
    )
    assert json.loads(outcome.lines(0)[0]) == [[], []]
    assert "so there is nothing to tune" in outcome.stderr


def test_a_job_without_steps_is_told_so(tmp_path: Path) -> None:
    outcome = _run(tmp_path, steps=1)
    assert "autotune: nothing was tuned, for no steps" in outcome.stderr
    assert outcome.lines(0) == ["[[], []]"]


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    outcome = _run(tmp_path, "--autotune-log-file=/proc/nothing/log", steps=5)
    assert "HVD_AUTOTUNE_LOG cannot be written" in outcome.stderr


@pytest.mark.parametrize("start", ["1024", "-1,0", "a,b", "1,1e9", "1,nan"])
def test_a_start_that_makes_no_sense_is_refused(start: str) -> None:
    outcome = jobs.run_python(
        1,
        "import hvd_keras as hvd; hvd.init()",
        "--autotune",
        HVD_AUTOTUNE_START=start,
    )
    assert outcome.status == 1
    assert "`HVD_AUTOTUNE_START` must be" in outcome.stderr


def test_options_of_horovod(tmp_path: Path) -> None:
    command = [
        "-np", "1", "--autotune", "--autotune-warmup-samples", "1",
        "--autotune-steps-per-sample", "2", "--autotune-log-file", "log.csv",
        "--autotune-bayes-opt-max-samples", "4",
        "--autotune-gaussian-process-noise", "0.8", "--", "env",
    ]  # fmt: skip
    outcome = jobs.run(*command)
    assert outcome.status == 0, outcome.stderr
    assert "gaussian-process-noise` has no meaning here" in outcome.stderr
    lines = outcome.lines(0)
    assert "HVD_AUTOTUNE=1" in lines
    assert "HVD_AUTOTUNE_WARMUP_SAMPLES=1" in lines
    assert "HVD_AUTOTUNE_STEPS_PER_SAMPLE=2" in lines
    assert "HVD_AUTOTUNE_MAX_SAMPLES=4" in lines
    assert f"HVD_AUTOTUNE_LOG={os.path.abspath('log.csv')}" in lines
