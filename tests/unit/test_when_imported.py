"""Functions run when packages are there, whoever imports them and when."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_keras._common import when_imported

OURS = "ours_for_this_test"


@pytest.fixture
def packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Two packages to watch, and one that stands for hvd_keras."""
    (tmp_path / "theirs_one.py").write_text("import theirs_two\n")
    (tmp_path / "theirs_two.py").write_text("")
    ours = tmp_path / OURS
    ours.mkdir()
    (ours / "__init__.py").write_text("")
    (ours / "uses.py").write_text("import theirs_two\nis_whole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(when_imported, "_OURS", OURS)
    before, finders = set(sys.modules), list(sys.meta_path)
    yield ["theirs_one", "theirs_two"]
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_package_that_is_there_already_counts(packages: list[str]) -> None:
    importlib.import_module("theirs_two")
    called: list[str] = []
    when_imported.call_when_imported({"theirs_two": lambda: called.append("2")})
    assert called == ["2"]


def test_each_function_runs_once_after_the_outermost_import(
    packages: list[str],
) -> None:
    called: list[str] = []

    def note(name: str) -> None:
        assert not {"theirs_one", "theirs_two"} - sys.modules.keys()
        called.append(name)

    when_imported.call_when_imported(
        {"theirs_two": lambda: note("2"), "theirs_one": lambda: note("1")}
    )
    assert called == []
    importlib.import_module("theirs_one")
    assert called == ["2", "1"]
    importlib.reload(sys.modules["theirs_one"])
    assert called == ["2", "1"]


def test_a_function_finds_our_modules_whole(packages: list[str]) -> None:
    """Ours import the package, and the function needs ours."""
    found: list[bool] = []

    def look() -> None:
        uses = importlib.import_module(f"{OURS}.uses")
        found.append(uses.is_whole)

    when_imported.call_when_imported({"theirs_two": look})
    importlib.import_module(f"{OURS}.uses")
    assert found == [True]


def test_a_refusal_is_repeated(packages: list[str]) -> None:
    def refuse() -> None:
        raise ImportError("too new")

    when_imported.call_when_imported({"theirs_two": refuse})
    for _ in range(2):
        with pytest.raises(ImportError, match="too new"):
            importlib.import_module("theirs_two")
        assert "theirs_two" not in sys.modules
