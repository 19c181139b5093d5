"""Drivers for Horovod's Ray run unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DRIVERS = Path(__file__).parent / "horovod_drivers"
_LINE = "import hvd_keras.compat.horovod\n"


def _run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command],
        # Without RAY_ADDRESS: each driver has a cluster of its own.
        env={
            **{n: v for n, v in os.environ.items() if n != "RAY_ADDRESS"},
            "PYTHONPATH": str(_ROOT),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def test_functions_run_on_actors(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(_LINE + (_DRIVERS / "executor.py").read_text())
    done = _run(str(driver), folder=tmp_path)
    assert "ran on 2 ranks\n" in done.stdout
    said = [line for line in done.stderr.splitlines() if "ignores" in line]
    assert len(said) == 1
    assert "ignores `ssh_identity_file`" in said[0]


@pytest.mark.parametrize("how", ["elastic_executor", "executor", "discovery"])
def test_elastic_ranks_come_again(how: str, tmp_path: Path) -> None:
    driver = str(_DRIVERS / "elastic.py")
    done = _run("-m", "hvd_keras.compat", driver, how, folder=tmp_path)
    assert "ran on 2 ranks\n" in done.stdout
