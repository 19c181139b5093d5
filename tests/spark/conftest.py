"""`make spark-check` runs these tests, in an environment that has PySpark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def s3() -> Iterator[Callable[[str], str]]:
    """Serves S3 on this machine; returns the address of a folder there."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    # The JVM and the tasks inherit these.
    os.environ["AWS_ACCESS_KEY_ID"] = "anyone"
    os.environ["AWS_SECRET_ACCESS_KEY"] = "anything"
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}%3A{port}"

    def address(folder: str) -> str:
        return f"s3://trainings/{folder}?region=us-east-1&{options}"

    system, path = fs.FileSystem.from_uri(
        f"{address('')}&allow_bucket_creation=true"
    )
    system.create_dir(path.rstrip("/"))
    yield address
    server.stop()


@pytest.fixture(scope="session")
def spark(s3: Any) -> Iterator[Any]:
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
