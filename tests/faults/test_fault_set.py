"""A case of each kind of the fault set; `make fault-set` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Network

from faults import cases, runner
from faults.cases import Case
from hvd_keras._observe.verdict import Cause

SAMPLE = cases.sample()


@pytest.fixture
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    network = Network(tmp_path_factory.mktemp("hosts"))
    yield network
    network.close()


def check(case: Case, folder: Path, network: Network | None = None) -> None:
    result = runner.run(case, folder, network)
    assert result.is_right, (result.verdict, result.output)
    assert result.has_right_line, (result.verdict, result.line)
    assert result.seconds <= runner.DEADLINE
    # What hvdrun prints, in that folder, is what the doctor says later.
    sentence = result.verdict["sentence"].replace(f"{folder}/", "")
    assert sentence in result.output


@pytest.mark.parametrize(
    "case",
    [case for case in SAMPLE if case.cause != Cause.SLOW_LINK],
    ids=lambda case: case.name,
)
def test_the_fault_is_named(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_slow_link_is_named(tmp_path: Path, network: Network) -> None:
    (case,) = (one for one in SAMPLE if one.cause == Cause.SLOW_LINK)
    check(case, tmp_path, network)


def test_the_seed_decides_all() -> None:
    assert cases.all_cases() == cases.all_cases()
    assert len(cases.all_cases()) >= 200
    assert len({case.name for case in cases.all_cases()}) >= 200


def test_programs_depend_on_the_case_alone(tmp_path: Path) -> None:
    for case in cases.all_cases()[::7]:
        texts = []
        for _ in range(2):
            line = cases.write(case, tmp_path)
            program = (tmp_path / "train.py").read_text()
            texts.append((line, program))
            compile(program, "train.py", "exec")
        assert texts[0] == texts[1]
