"""Stores by Horovod's names: what they name, and what they keep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_keras._common import horovod_site

sys.path.insert(0, horovod_site.SITE)

from horovod.spark.common import store as stores
from horovod.spark.common.backend import SparkBackend


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("/shared/x", "LocalStore"),
        ("file:///shared/x", "LocalStore"),
        ("/dbfs/x", "DBFSLocalStore"),
        ("dbfs:/x", "DBFSLocalStore"),
        ("file:///dbfs/x", "DBFSLocalStore"),
        ("/dbfsx", "LocalStore"),
        ("hdfs://name:8020/x", "HDFSStore"),
        ("s3://bucket/x", "FilesystemStore"),
        ("memory://x", "FilesystemStore"),
    ],
)
def test_an_address_chooses_the_kind(address: str, kind: str) -> None:
    store = stores.Store.create(address, save_runs=False)
    assert type(store).__name__ == kind
    assert isinstance(store, stores.Store)
    assert not store.saving_runs()
    folder = store.prefix_path
    assert store.get_train_data_path() == f"{folder}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{folder}/intermediate_val_data.3"
    assert store.get_run_path("a") == f"{folder}/runs/a"
    assert store.get_logs_path("a") == f"{folder}/runs/a/logs"
    name = store.get_checkpoint_filename()
    assert store.get_checkpoint_path("a") == f"{folder}/runs/a/{name}"


def test_the_address_of_hdfs_has_what_its_client_needs() -> None:
    hdfs = stores.HDFSStore
    assert hdfs("/x").prefix_path == "hdfs:///x"
    assert hdfs("hdfs://name:1/x", user="u").prefix_path == "hdfs://u@name:1/x"
    store = hdfs("/x", "name", 8020, kerb_ticket="/a b", driver="libhdfs")
    assert store.prefix_path == "hdfs://name:8020/x?kerb_ticket=%2Fa+b"
    runs = store.get_runs_path()
    assert runs == "hdfs://name:8020/x/runs?kerb_ticket=%2Fa+b"


@pytest.fixture(params=["folder", "s3", "s3 by fsspec", "fsspec"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, s3: Callable[[str], str]
) -> Any:
    if request.param == "folder":
        return stores.Store.create(str(tmp_path))
    if request.param == "fsspec":
        return stores.Store.create(
            f"local://{tmp_path}", storage_options={"x": 1}
        )
    if request.param == "s3":
        return stores.Store.create(s3("stores"))
    pytest.importorskip("s3fs")
    endpoint = s3("").partition("endpoint_override=")[2].replace("%3A", ":")
    options = {
        "key": "anyone",
        "secret": "anything",
        "client_kwargs": {"endpoint_url": f"http://{endpoint}"},
    }
    return stores.Store.create(
        "s3a://trainings/by_fsspec", storage_options=options
    )


def test_files_and_rows_are_kept(store: Any, spark: Any) -> None:
    checkpoint = store.get_checkpoint_path("run")
    assert not store.exists(checkpoint)
    assert store.get_checkpoints("run") == []
    store.write(checkpoint, b"model")
    assert store.read(checkpoint) == b"model"
    assert store.get_checkpoints("run") == [checkpoint]
    store.write_text(checkpoint, "other")
    assert store.read(checkpoint) == b"other"
    path = store.get_train_data_path()
    assert not store.is_parquet_dataset(path)
    for count in (30, 20):  # the second time in place of the first
        store.write_rows(spark.range(count).repartition(count // 10), path)
        table = store.get_parquet_dataset(path).to_table()
        assert sorted(table["id"].to_pylist()) == list(range(count))
    assert store.is_parquet_dataset(path)


def _size(plus: int) -> tuple[int, str]:
    import os

    import horovod.tensorflow as hvd

    hvd.init()
    return hvd.size() + plus, os.environ["FLAG"]


def test_a_backend_runs_functions(spark: Any) -> None:
    backend = SparkBackend(2, env={"FLAG": "first"})
    assert backend.num_processes() == 2
    found = backend.run(_size, (1,), env={"FLAG": "second"})
    assert found == [(3, "second")] * 2
    assert SparkBackend().num_processes() == 3
