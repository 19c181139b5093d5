"""Draws which of Horovod's names are here: docs/horovod-modules.md.

    python tests/horovod_surface.py [--write | --check]

Sections of modules that need a package that is not installed (PySpark, Ray)
stay as they are in the page. With --check the status is 1 if it is stale.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from importlib.util import find_spec
from typing import Any

import drawn_pages
import horovod_names

PAGE = drawn_pages.TESTS.parent / "docs" / "horovod-modules.md"
BEGIN = "<!-- Begin of the modules: tests/horovod_surface.py draws them. -->"
# `tests/ray` looks like a module `ray`.
_NEEDED = {"spark": "pyspark", "ray": "ray.train", "torch": "torch"}


def can_draw(module: str) -> bool:
    """Whether what a module needs is installed."""
    kind = f"{module}.".split(".")[1]
    return kind not in _NEEDED or find_spec(_NEEDED[kind]) is not None


def section_of(module: str, names: list[str]) -> str:
    """Returns what the page says of a module."""
    runs, ignored, missing = [], [], []
    reason = ""
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        found, reason = None, _reason(error)
    for name in names:
        value = getattr(found, name, None)
        if value is None or (value.__doc__ or "").startswith("Not there:"):
            missing.append(f"`{name}`")
            continue
        runs.append(f"`{name}`")
        ignored += _ignored(name, value)
    lines = [f"## `{module}`\n"]
    if runs:
        lines.append(f"- Runs: {', '.join(runs)}.")
    if ignored:
        lines.append(f"- Arguments without effect: {'; '.join(ignored)}.")
    if missing:
        lines.append(f"- Not there: {', '.join(missing)}{reason}.")
    return "\n".join(lines) + "\n"


def _reason(error: ImportError) -> str:
    text = str(error).rstrip(".")
    if isinstance(error, ModuleNotFoundError):
        return ""
    return f": {text.rpartition('`: ')[2]}"


def _ignored(name: str, value: Any) -> list[str]:
    """Returns the arguments of a function or of a class that do nothing."""
    functions = {name: value}
    if inspect.isclass(value):
        functions = {name: value.__init__}
        for own, method in inspect.getmembers(value, inspect.isfunction):
            if not own.startswith("_"):
                functions[f"{name}.{own}"] = method
    return [
        f"`{shown}`: {', '.join(f'`{one}`' for one in function.ignored)}"
        for shown, function in functions.items()
        if hasattr(function, "ignored")
    ]


def drawn(before: str) -> str:
    """Returns the sections of all modules.

    Args:
        before: The page as it is.
    """
    old = {
        f"horovod{match[1]}": match[0].rstrip() + "\n"
        for match in re.finditer(
            r"^## `horovod([\w.]*)`\n.*?(?=^## |\Z)", before, re.M | re.S
        )
    }
    return "\n".join(
        section_of(module, names.split()) if can_draw(module) else old[module]
        for module, names in horovod_names.NAMES.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    import hvd_keras.compat.horovod  # noqa: F401

    before = PAGE.read_text()
    text = drawn(before)
    if not options.check:
        drawn_pages.show(text, PAGE, BEGIN, write=options.write)
        return 0
    if before.split(BEGIN)[1].strip() == text.strip():
        return 0
    print(
        f"{PAGE.name} must say what is there: run "
        f"`python tests/horovod_surface.py --write`.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
