"""Where an estimator keeps the rows of a training and its checkpoints."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError

_DBFS = "dbfs:/"


class Store:
    """A folder that the driver and all tasks can reach, by its address."""

    def __init__(self, prefix: str) -> None:
        """Names the folder.

        Args:
            prefix: A path, `file://`, `dbfs:/` or `hdfs://`; or `s3://`,
                `gs://` or whatever else pyarrow or fsspec knows: Spark needs
                no connector for it, but all tasks need its credentials.
                Options of pyarrow follow a question mark.
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
        return self.join(self.prefix, f"run-{uuid.uuid4().hex[:12]}")

    @staticmethod
    def join(address: str, name: str) -> str:
        """Returns the address of what is in a folder."""
        if "://" not in address:
            return posixpath.join(address, name)
        folder, mark, options = address.partition("?")
        return f"{folder.rstrip('/')}/{name}{mark}{options}"

    @staticmethod
    def local_path(address: str) -> str | None:
        """Returns the path of a folder in the file system; None: elsewhere."""
        if address.startswith(_DBFS):
            return "/dbfs/" + address.removeprefix(_DBFS).lstrip("/")
        if address.startswith("file:"):
            return "/" + address.removeprefix("file:").lstrip("/")
        return None if "://" in address else address

    @classmethod
    def write(cls, frame: Any, address: str) -> None:
        """Writes a DataFrame of Spark as Parquet into a new folder."""
        if cls.local_path(address) is not None or address.startswith("hdfs:"):
            own = address if ":" in address else f"file://{address}"
            frame.write.parquet(own)
            return

        def write_part(batches: Iterator[Any]) -> Iterator[Any]:
            yield _write_part(batches, address)

        frame.mapInArrow(write_part, "num_rows long").collect()

    @classmethod
    def dataset(cls, address: str) -> Any:
        """Returns the `pyarrow.dataset.Dataset` of a folder of Parquet."""
        from pyarrow import dataset

        local = cls.local_path(address)
        if local is not None:
            return dataset.dataset(local, format="parquet")
        system, path = _file_system(address)
        return dataset.dataset(path, filesystem=system, format="parquet")


def _file_system(address: str) -> tuple[Any, str]:
    """Returns the `pyarrow.fs.FileSystem` of an address, and the path in it."""
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(address)
    except Exception:  # fsspec knows more kinds
        import fsspec

        other, path = fsspec.core.url_to_fs(address)
        system = fs.PyFileSystem(fs.FSSpecHandler(other))
    return system, path


def _write_part(batches: Iterator[Any], address: str) -> Any:
    """Writes the rows of a task into a file; returns their number as a batch.

    A task that Spark runs again writes the same file again.
    """
    import pyarrow as pa
    from pyarrow import parquet

    from hvd_keras.spark import _barrier

    system, folder = _file_system(address)
    number = _barrier.present_task().partitionId()
    path = f"{folder}/part-{number:05d}.parquet"
    num_rows, writer = 0, None
    system.create_dir(folder)
    for batch in batches:
        if writer is None:
            writer = parquet.ParquetWriter(
                path, batch.schema, filesystem=system
            )
        writer.write_batch(batch)
        num_rows += batch.num_rows
    if writer is not None:
        writer.close()
    return pa.RecordBatch.from_pydict({"num_rows": [num_rows]})
