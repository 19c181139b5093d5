"""`make spark-check` runs these tests, in an environment that has PySpark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """Serves S3 on this machine; the JVM and the tasks inherit its address."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="anyone",
        AWS_SECRET_ACCESS_KEY="anything",
        AWS_DEFAULT_REGION="us-east-1",
    )
    fs.S3FileSystem(allow_bucket_creation=True).create_dir("trainings")
    yield "s3://trainings"
    server.stop()


@pytest.fixture(scope="session")
def spark(bucket: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    here = str(Path(__file__).parent)
    path = [str(_ROOT), str(_ROOT / "examples"), here]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()
