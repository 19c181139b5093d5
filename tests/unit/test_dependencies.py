"""Every import of the package is declared, or comes with Keras."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
# Keras requires these; we use them for its arrays, files and versions alone.
_FROM_KERAS = {"h5py", "ml_dtypes", "packaging"}
# hvd_keras itself, under Horovod's name.
_OURS = {"hvd_keras", "horovod"}
_MODULES = {"absl_py": "absl", "tensorflow_cpu": "tensorflow"}


def _imported() -> set[str]:
    names = set()
    for path in (_ROOT / "hvd_keras").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module or "")
    roots = {name.partition(".")[0] for name in names}
    return roots - _OURS - set(sys.stdlib_module_names)


def _modules(requirements: list[str]) -> set[str]:
    names = {
        re.split(r"[^\w-]", text)[0].replace("-", "_").lower()
        for text in requirements
    }
    return {_MODULES.get(name, name) for name in names}


def test_every_import_is_declared_or_comes_with_keras() -> None:
    project = pytest.importorskip("tomllib").loads(
        (_ROOT / "pyproject.toml").read_text()
    )["project"]
    extras = project["optional-dependencies"]
    declared = _modules(
        project["dependencies"]
        + extras["tensorflow"]
        + extras["completion"]
        + extras["jax"]
        + extras["metrics"]
        + extras["ray"]
        + extras["records"]
        + extras["run"]
        + extras["spark"]
        + extras["torch"]
    )
    assert _imported() == declared | _FROM_KERAS


def test_keras_requires_the_imports_that_come_with_it() -> None:
    assert _modules(importlib.metadata.requires("keras") or []) >= _FROM_KERAS


def _offers(text: str) -> list[str]:
    """What of a text says that an index has the package."""
    extra = r"hvd[-_]keras\[[a-z]"
    bare = r"\b(?:pip\d?|uv|pipx) install (?:-\S+ )*['\"]?hvd[-_]keras\b(?!-\d)"
    # A text may be cut anywhere in a string of Python.
    joined = re.sub(r"[\"'`]?\s*\n\s*f?[\"'`]", "", text)
    return re.findall(f"{extra}|{bare}", text + "\n" + joined)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'hvd-keras[run]'",
        "pip install hvd-keras",
        "pip install -U hvd_keras==0.1.0",
        '"Install it: pip install "\n    "hvd-keras."[:-1]',
        "Needs `hvd_keras[metrics]`.",
    ],
)
def test_an_offer_is_found(text: str) -> None:
    assert _offers(text)


def test_no_text_offers_the_package_from_an_index() -> None:
    # Its name is nobody's there, so a stranger could take it.
    folders = ("docs", "examples", "hvd_keras", "recipes", "docker", "tools")
    files = [*_ROOT.glob("*.md"), *_ROOT.glob("tests/*/*.py")]
    files += [file for name in folders for file in (_ROOT / name).rglob("*")]
    texts = {".md", ".py", ".ipynb", ".sh", ".yaml", ".def", ".eb", ".toml", ""}
    found = {
        str(file): _offers(file.read_text(errors="replace"))
        for file in files
        if file.is_file() and file.suffix in texts and file != Path(__file__)
    }
    assert len(found) > 300
    assert {file: each for file, each in found.items() if each} == {}
