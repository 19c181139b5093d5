"""`run` works with Spark Connect, which has no RDDs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
from pyspark.sql import SparkSession
import hvd_keras.spark

session = SparkSession.builder.remote("local[2]").getOrCreate()

def size(plus):
    import hvd_keras as hvd
    hvd.init()
    return hvd.size() + plus

try:
    hvd_keras.spark.run(size, (3,))
except hvd_keras.LaunchError as error:
    print(error)
print(hvd_keras.spark.run(size, (3,), num_proc=2))
session.stop()
"""


def test_tasks_of_connect_become_ranks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert "`num_proc` must be given with Spark Connect" in done.stdout, done
    assert done.stdout.endswith("[5, 5]\n"), done
