"""What hvdrun's command line says of elastic jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_keras.exceptions import LaunchError
from hvd_keras.run.cli import arguments
from hvd_keras.run.hosts import discovery, planning
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.usage import UsageError


def _plan(text: str) -> Plan:
    return planning.plan(arguments.parse([*text.split(), "true"]).spec, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-np 2 --max-np 4", "must be given with --min-np"),
        ("-np 2 --min-np 3", r"must be in \[1, --max-np\]"),
        ("-np 2 --min-np 0", r"must be in \[1, --max-np\]"),
        ("-np 2 --min-np 1 --max-restarts -1", "`--max-restarts` must be 0"),
        ("-np 2 --min-np 1 --blacklist-cooldown 2 1", "the lower one first"),
        ("-np 2 --nnodes 1:2", "or MIN:MAX with --min-np"),
        ("-np 2 --nnodes 2:1 --min-np 1", "must be a number of hosts"),
        ("true -np 2", "missing before the command, behind which"),
        ("--host-discovery-script x", "must be given with --min-np"),
        ("--host-discovery-script x --min-np 1", "Received: .*No such file"),
    ],
)
def test_nonsense_is_refused(text: str, message: str) -> None:
    with pytest.raises((LaunchError, UsageError), match=message):
        _plan(text)


def test_hosts_that_may_come_are_in_the_plan() -> None:
    plan = _plan("-np 2 --nnodes 1:3 --min-np 1")
    assert len(plan.hosts) == 3
    assert (plan.min_hosts, plan.may_grow) == (1, True)
    assert not plan.is_of_one_host


def _script(folder: Path, text: str) -> str:
    path = folder / "hosts"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_names_hosts(tmp_path: Path) -> None:
    path = _script(tmp_path, "echo a:4; echo b")
    assert discovery.ask(path, 2) == {"a": 4, "b": 2}


@pytest.mark.parametrize("text", ["exit 3", "echo a:x", "kill $$"])
def test_a_program_that_fails_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="must print lines such as host:4"):
        discovery.ask(_script(tmp_path, text), 1)
