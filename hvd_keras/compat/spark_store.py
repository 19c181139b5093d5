"""`horovod.spark.common.store` on `hvd_keras.spark.Store`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from hvd_keras import spark
from hvd_keras._common.ignored import ignoring
from hvd_keras.spark.store import CHECKPOINT

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "Store",
]


class Store(spark.Store):
    """A folder for rows, models and logs, laid out as Horovod does it."""

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Names the folders.

        Args:
            prefix_path: See `hvd_keras.spark.Store`.
            train_path: Where rows are. Default: a folder in `prefix_path`.
            val_path: The same of rows for validation.
            test_path: The same of rows for tests.
            runs_path: Where trainings leave their models.
            save_runs: Whether they do.
            storage_options: Options for fsspec.
        """
        super().__init__(prefix_path, storage_options)
        self.prefix_path = self.prefix
        join = self.join
        self._train = train_path or join(self.prefix, "intermediate_train_data")
        self._val = val_path or join(self.prefix, "intermediate_val_data")
        self._test = test_path or join(self.prefix, "intermediate_test_data")
        self._runs = runs_path or join(self.prefix, "runs")
        self._save_runs = save_runs

    @classmethod
    def create(cls, prefix_path: str, *args: Any, **options: Any) -> Store:
        """Returns the store for an address."""
        kind = cls
        if cls is Store:
            path = cls.local_path(prefix_path)
            if prefix_path.startswith("hdfs:"):
                kind = HDFSStore
            elif path is None:
                kind = FilesystemStore
            else:
                is_dbfs = f"{path}/".startswith("/dbfs/")
                kind = DBFSLocalStore if is_dbfs else LocalStore
        return kind(prefix_path, *args, **options)

    def run_folder(self, run_id: str) -> str:
        return self.join(self._runs, run_id)

    get_run_path = run_folder

    def get_train_data_path(self, idx: Any = None) -> str:
        """Returns the address of the rows."""
        return _numbered(self._train, idx)

    def get_val_data_path(self, idx: Any = None) -> str:
        """Returns the address of the rows for validation."""
        return _numbered(self._val, idx)

    def get_test_data_path(self, idx: Any = None) -> str:
        """Returns the address of the rows for tests."""
        return _numbered(self._test, idx)

    def get_runs_path(self) -> str:
        """Returns the address of all trainings."""
        return self._runs

    def get_checkpoint_path(self, run_id: str) -> str:
        """Returns the address of the model of a training."""
        return self.checkpoint(run_id)

    def get_checkpoint_filename(self) -> str:
        """Returns the name of the models of all trainings."""
        return CHECKPOINT

    def get_checkpoints(self, run_id: str, suffix: str = ".keras") -> list[str]:
        """Returns the addresses of the models of a training that are there."""
        found = self.get_checkpoint_path(run_id)
        is_there = CHECKPOINT.endswith(suffix) and self.exists(found)
        return [found] if is_there else []

    def get_logs_path(self, run_id: str) -> str:
        """Returns the address for logs of a training."""
        return self.join(self.run_folder(run_id), self.get_logs_subdir())

    def get_logs_subdir(self) -> str:
        """Returns the name of the folder for logs."""
        return "logs"

    def saving_runs(self) -> bool:
        """Whether trainings leave their models here."""
        return self._save_runs

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether rows can be read there."""
        try:
            self.rows(path)
        except Exception:  # each file system has errors of its own
            return False
        return True

    def get_parquet_dataset(self, path: str) -> Any:
        """Returns rows as a `pyarrow.dataset.Dataset`."""
        return self.rows(path)

    def write_text(self, path: str, text: str) -> None:
        """Makes a file."""
        self.write(path, text.encode())


def _numbered(path: str, number: Any) -> str:
    return path if number is None else f"{path}.{number}"


class FilesystemStore(Store):
    """A store in any file system that pyarrow or fsspec knows, such as S3."""


AbstractFilesystemStore = FilesystemStore


class LocalStore(FilesystemStore):
    """A store in a folder that all hosts share."""


class DBFSLocalStore(LocalStore):
    """A store in the file system of Databricks (`dbfs:/`, `/dbfs/`)."""


class HDFSStore(FilesystemStore):
    """A store in HDFS."""

    @ignoring("horovod.spark.common.store.HDFSStore", "driver temp_dir")
    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        extra_conf: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Names the folders.

        Args:
            prefix_path: A path in HDFS, or an address (`hdfs://host:port/path`).
            host: Host of the name node. Default: that of the address, or of
                the configuration of Hadoop.
            port: Its port.
            user: Who reads and writes.
            kerb_ticket: The path of a cache of Kerberos.
            extra_conf: More settings for the client.
            **options: The arguments of `Store`.
        """
        address = prefix_path.removeprefix("hdfs://")
        given, _, path = address.partition("/")
        if host is not None:
            given = host if port is None else f"{host}:{port}"
        if user is not None and "@" not in given:
            given = f"{user}@{given}"
        query = {"kerb_ticket": kerb_ticket} if kerb_ticket else {}
        query.update(extra_conf or {})
        mark = f"?{urlencode(query)}" if query else ""
        super().__init__(f"hdfs://{given}/{path}{mark}", **options)
