"""The versions of Keras that ran: page, package and check say the same."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from hvd_keras._common.version import TRIED_KERAS
from hvd_keras.run.cli import check

ROOT = Path(__file__).parents[2]


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_page_has_a_row_or_a_column_for_each() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    released = re.findall(r"^\| 3\.\d+ \| [^|]* \| (3[.\d]+) \|", page, re.M)
    (sources,) = re.findall(r"Keras's main branch \((3[.\d]+),", page)
    tried = {minor_of(version) for version in [*released, sources]}
    assert tried == set(TRIED_KERAS)


def test_pip_takes_none_that_is_newer() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    number = int(TRIED_KERAS[-1].removeprefix("3."))
    assert f'"keras>={TRIED_KERAS[0]},<3.{number + 1}"' in text


def test_all_files_name_the_version_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', text, re.M)
    (recipe,) = (ROOT / "recipes/easybuild").glob("hvd-keras-*.eb")
    assert f"-{version}-" in recipe.name
    for name, line in {
        recipe: f"version = '{version}'",
        "recipes/conda/recipe.yaml": f'version: "{version}"',
        "CITATION.cff": f"version: {version}",
        "CHANGELOG.md": f"# Changelog\n\n## {version}",
        "README.md": f"badge/version-{version}-",
    }.items():
        assert line in (ROOT / name).read_text(), name


def test_the_badges_name_the_versions_that_pip_takes() -> None:
    readme = (ROOT / "README.md").read_text()
    text = (ROOT / "pyproject.toml").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", text)
    for library, first, last in (
        ("python", pythons[0], pythons[-1]),
        ("keras", TRIED_KERAS[0], TRIED_KERAS[-1]),
    ):
        assert f"badge/{library}-{first}_to_{last}-" in readme


@pytest.mark.parametrize(
    ("version", "warns"),
    [("3.8.0", False), ("3.16.0.dev1", False), ("3.9.2", True), ("4.0", True)],
)
def test_check_warns_of_one_that_did_not_run(
    version: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.metadata.version

    def fake(name: str) -> str:
        return version if name == "keras" else known(name)

    monkeypatch.setattr(importlib.metadata, "version", fake)
    told = check._keras()
    assert told.startswith(version)
    assert ("WARNING: hvd_keras was not tried with it" in told) == warns
