"""Drivers for Horovod's Spark run unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DRIVERS = Path(__file__).parent / "horovod_drivers"
_LINE = "import hvd_keras.compat.horovod\n"


def _run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--master local[3] pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def _driver(name: str) -> str:
    return str(_DRIVERS / f"{name}.py")


@pytest.mark.parametrize("name", ["run_function", "run_elastic"])
def test_functions_run_on_ranks(name: str, tmp_path: Path) -> None:
    done = _run("-m", "hvd_keras.compat", _driver(name), folder=tmp_path)
    assert done.stdout.endswith("ran on 2 ranks\n")


def test_the_first_line_is_enough(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(_LINE + Path(_driver("run_function")).read_text())
    done = _run(str(driver), folder=tmp_path)
    assert done.stdout.endswith("ran on 2 ranks\n")
    said = [line for line in done.stderr.splitlines() if "ignores" in line]
    assert len(said) == 2  # use_gloo, verbose
    assert "`horovod.spark.run` ignores `use_gloo`" in done.stderr


def test_an_estimator_keeps_all_in_a_folder(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    done = _run(
        "-m", "hvd_keras.compat", _driver("estimator"), place, folder=tmp_path
    )
    assert done.stdout.endswith("kept in LocalStore\n")


def test_an_estimator_keeps_all_in_s3(
    s3: Callable[[str], str], tmp_path: Path
) -> None:
    place = s3("horovod")
    done = _run(
        "-m", "hvd_keras.compat", _driver("estimator"), place, folder=tmp_path
    )
    assert done.stdout.endswith("kept in FilesystemStore\n")
