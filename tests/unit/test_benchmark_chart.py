"""The chart of the README shows the recorded runs, and can be read anywhere."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def test_chart_is_that_of_the_recorded_runs(tmp_path: pathlib.Path) -> None:
    drawn = tmp_path / "chart.svg"
    subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks/report.py"),
            *(ROOT / "benchmarks/RESULTS.jsonl", f"--chart={drawn}"),
        ],
        check=True,
        timeout=60,
    )
    kept = (ROOT / "docs/images/packages.svg").read_text()
    assert drawn.read_text() == kept, "`make chart` draws it anew"
    xml.etree.ElementTree.fromstring(kept)
    assert "prefers-color-scheme: dark" in kept


@pytest.fixture
def chart(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("_chart")


def line(way: str, note: str, value: float, day: str) -> dict[str, object]:
    same = {"section": "Beside other packages", "case": "4 B"}
    return {**same, "way": way, "note": note, "runs": [value], "day": day}


def test_runs_of_one_package_and_older_ones_are_left_out(chart: object) -> None:
    lines = [line("hvd_keras", "alone", 1.0, "3"), {"section": "The goals"}]
    for day, add in ("1", 4.0), ("2", 0.0):
        lines += [line("hvd_keras", "in turns", add + 2.0, day)]
        lines += [line("MPI", "in turns", add + 3.0, day)]
    assert chart.rows_of(lines) == {"4 B": {"hvd_keras": [2.0], "MPI": [3.0]}}
