"""`make gpu-first-hour` on a machine without a GPU, and how it goes on."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / "tools" / "gpu_first_hour.py"


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_first_hour", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_first_hour"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "No GPU here: nothing to check.\n"


def test_it_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    tool = _tool()
    marks = tmp_path / "marks"
    todo = [
        tool.Check("good", f"echo x >> {marks}; echo '7 us | b'", figure="us"),
        tool.Check("bad", f"echo y >> {marks}; test -e {tmp_path}/fixed"),
        tool.Check("slow", "sleep 60", 0.2),
    ]
    said: list[str] = []
    assert not tool.run_all(todo, tmp_path, 60.0, said.append)
    assert said[0] == "1. good: pass, 7 us | b"
    assert said[1].startswith("2. bad: fail")
    assert said[2].startswith("3. slow: late")
    (tmp_path / "fixed").touch()
    assert tool.run_all(todo[:2], tmp_path, 60.0, said.append)
    assert marks.read_text() == "x\ny\ny\n"
    report = (tmp_path / "gpu_first_hour.md").read_text()
    assert "| 1 | good | pass | 7 us \\| b | 0 s |" in report
    assert "| 2 | bad | pass |" in report


def test_there_are_fifteen_checks_of_files_that_exist() -> None:
    todo = _tool().checks(2)
    assert len(todo) == 15
    words = " ".join(check.command for check in todo).split()
    scripts = [word for word in words if word.endswith(".py")]
    assert scripts
    for script in scripts:
        assert (ROOT / script).exists(), script
