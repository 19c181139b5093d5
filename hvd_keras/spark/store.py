"""Where an estimator keeps the rows of a training and its checkpoints."""

from __future__ import annotations

import posixpath
import uuid
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError

_DBFS = "dbfs:/"


class Store:
    """A folder that the driver and all tasks can reach, by its address."""

    def __init__(self, prefix: str) -> None:
        """Names the folder.

        Args:
            prefix: A path, or `file://`, `dbfs:/`, `s3://`, `gs://`, `hdfs://`
                or whatever else pyarrow or fsspec knows.
        """
        if not isinstance(prefix, str) or not prefix:
            raise InvalidArgumentError(
                "`prefix` must be the path or address of a folder. Received: "
                f"{prefix!r}."
            )
        self.prefix = prefix.rstrip("/")

    @classmethod
    def create(cls, prefix_path: str) -> Store:
        """Returns a store, as Horovod's `Store.create` does."""
        return cls(prefix_path)

    def new_run(self) -> str:
        """Returns the address of a new folder for one training."""
        return posixpath.join(self.prefix, f"run-{uuid.uuid4().hex[:12]}")

    @staticmethod
    def for_spark(address: str) -> str:
        """Returns the address as Spark writes it: plain paths are local."""
        return address if ":" in address else f"file://{address}"

    @staticmethod
    def local_path(address: str) -> str | None:
        """Returns the path of a folder in the file system; None: elsewhere."""
        if address.startswith(_DBFS):
            return "/dbfs/" + address.removeprefix(_DBFS).lstrip("/")
        if address.startswith("file:"):
            return "/" + address.removeprefix("file:").lstrip("/")
        return None if "://" in address else address

    @classmethod
    def dataset(cls, address: str) -> Any:
        """Returns the `pyarrow.dataset.Dataset` of a folder of Parquet."""
        from pyarrow import dataset, fs

        local = cls.local_path(address)
        if local is not None:
            return dataset.dataset(local, format="parquet")
        try:
            system, path = fs.FileSystem.from_uri(address)
        except Exception:  # fsspec knows more kinds
            import fsspec

            other, path = fsspec.core.url_to_fs(address)
            system = fs.PyFileSystem(fs.FSSpecHandler(other))
        return dataset.dataset(path, filesystem=system, format="parquet")
