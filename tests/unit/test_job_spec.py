"""A job is described alike, whoever asks for it."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from hvd_keras.exceptions import LaunchError
from hvd_keras.run import spec
from hvd_keras.run.cli import arguments
from hvd_keras.run.spec import (
    Elastic,
    JobSpec,
    Meeting,
    Output,
    Provision,
    Reach,
)
from hvd_keras.run.usage import UsageError

FULL = JobSpec(
    ("python", "train.py", "--tag"),
    4,
    "a:2,b:2",
    "hosts",
    Meeting("1:2", 1, "a:7", "b", 8),
    Reach(22, "key", "python3"),
    Elastic(2, 6, 7, 0.5, 9.0, "list", 3, (1.0, 2.0), 1.5),
    Output(
        "out", False, True, (0, 2), True, 5.0, os.path.abspath("t"), "r.html"
    ),
    3.0,
    True,
    ("A=1", "B"),
    {
        "HVD_INTERFACE": "lo",
        "HVD_TELL_STATUS": "1",
        "HVD_STRAGGLER_FACTOR": "1.5",
        "HVD_TIMELINE": os.path.abspath("t"),
    },
)
LINE = (
    "-np 4 -H a:2,b:2 --hostfile hosts --nnodes 1:2 --node-rank 1 "
    "--rdzv-endpoint a:7 --master-addr b --master-port 8 -p 22 -i key "
    "--remote-python python3 --min-np 2 --max-np 6 "
    "--max-restarts 7 --restart-delay 0.5 --elastic-timeout 9 "
    "--host-discovery-script list --slots-per-host 3 --blacklist-cooldown 1 2 "
    "--evict-stragglers 1.5 --output-dir out --no-tag --timestamp "
    "--show-ranks 2,0 -v --status --status-seconds 5 --report r.html "
    "--grace 3 --horovod-compat -x A=1 -x B --interface lo"
).split()


def test_the_command_line_says_all_of_a_job() -> None:
    timeline = ["--timeline", os.path.abspath("t")]
    command = ["--", *FULL.command]
    found = arguments.parse([*LINE, *timeline, *command]).spec
    # JSON knows neither tuples nor sets.
    assert spec.of_json(found.to_json()) == spec.of_json(FULL.to_json())
    defaults = dataclasses.asdict(JobSpec(()))
    for field, value in dataclasses.asdict(FULL).items():
        if field not in ("program", "provision", "results_folder"):
            assert value != defaults[field], f"{field} is not tested"


@pytest.mark.parametrize("one", [JobSpec(("true",)), JobSpec((), 2)])
def test_defaults_are_those_of_the_command_line(one: JobSpec) -> None:
    line = [] if one.num_ranks is None else ["-np", str(one.num_ranks)]
    assert arguments.parse([*line, *one.command]).spec == one
    elastic = arguments.parse([*line, "--min-np", "1"]).spec.elastic
    assert elastic == Elastic(1)


def test_a_spec_travels_whole() -> None:
    provision = Provision("Ray", {"a": 2}, 5)
    full = dataclasses.replace(FULL, provision=provision)
    found = spec.of_json(full.to_json())
    assert found.provision == provision
    assert dataclasses.replace(found, elastic=None).elastic is None
    assert found.elastic is not None
    assert found.elastic.min_ranks == 2
    assert found.output.shown_ranks == [0, 2]
    assert found.settings == FULL.settings
    assert spec.of_json(JobSpec(("a",)).to_json()).elastic is None


def test_a_malformed_line_is_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError, match=r"error: .*-np.*: invalid int"):
        arguments.parse(["-np", "x", "true"])
    assert "usage: hvdrun -np N" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["max_ranks", "blacklist_cooldown", "straggler_factor"]
)
def test_what_needs_an_elastic_job_is_refused(option: str) -> None:
    with pytest.raises(LaunchError, match="must be given with --min-np"):
        spec.elastic(None, **{option: 2})
    assert spec.elastic(None, **{option: None}) is None


def test_numbers_of_numpy_are_numbers_in_another_process() -> None:
    elastic = Elastic(np.int64(2), np.int32(6), 7, np.float32(0.5))
    given = JobSpec(("true",), num_ranks=np.int64(4), elastic=elastic)
    found = spec.of_json(given.to_json())
    assert (found.num_ranks, found.elastic) == (4, Elastic(2, 6, 7, 0.5))
