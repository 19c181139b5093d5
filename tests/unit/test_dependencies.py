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
