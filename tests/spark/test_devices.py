"""A rank sees the GPUs that Spark has given to its task."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_keras as hvd
from hvd_keras.spark import get_available_devices
from hvd_keras.spark.devices import visible_devices

_ROOT = Path(__file__).parents[2]
# Spark believes a script about the GPUs of a worker.
_SCRIPT = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0", "1"]}'
"""
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
import hvd_keras.spark

session = (
    SparkSession.builder.master("local-cluster[1,2,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.worker.resource.gpu.amount", "2")
    .config("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
    .config("spark.executor.resource.gpu.amount", "2")
    .config("spark.task.resource.gpu.amount", "1")
    .getOrCreate()
)

def devices():
    import os
    from hvd_keras.spark import get_available_devices
    return get_available_devices(), os.environ["CUDA_VISIBLE_DEVICES"]

print(sorted(hvd_keras.spark.run(devices, num_proc=2)))
session.stop()
"""


def test_each_rank_sees_the_gpu_of_its_task(tmp_path: Path) -> None:
    script = tmp_path / "gpus.sh"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    environ = {k: v for k, v in os.environ.items() if k[:5] != "CUDA_"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(script)],
        env={
            **environ,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("[(['0'], '0'), (['1'], '1')]\n"), done


def test_numbers_count_the_gpus_that_the_task_may_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices([]) == {}
    assert visible_devices(["1"]) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5,6")
    assert visible_devices(["1", "2"]) == {"CUDA_VISIBLE_DEVICES": "GPU-5,6"}
    assert visible_devices(["GPU-5"]) == {"CUDA_VISIBLE_DEVICES": "GPU-5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # it sees none by itself
    assert visible_devices(["1"]) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_it_needs_a_task() -> None:
    with pytest.raises(hvd.LaunchError, match="in a task of Spark"):
        get_available_devices()
