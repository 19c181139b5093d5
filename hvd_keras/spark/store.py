"""Where an estimator keeps the rows of a training and its checkpoints."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError

_DBFS = "dbfs:/"
CHECKPOINT = "checkpoint.keras"  # the model of a training


class Store:
    """A folder that the driver and all tasks can reach, by its address."""

    def __init__(
        self, prefix: str, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Names the folder.

        Args:
            prefix: A path, `file://`, `dbfs:/` or `hdfs://`; or `s3://`,
                `gs://` or whatever else pyarrow or fsspec knows: Spark needs
                no connector for it, but all tasks need its credentials.
                Options of pyarrow follow a question mark.
            storage_options: Options for fsspec, such as keys: it is used then
                in place of Spark and pyarrow.
        """
        if not isinstance(prefix, str) or not prefix:
            raise InvalidArgumentError(
                "`prefix` must be the path or address of a folder. Received: "
                f"{prefix!r}."
            )
        self.prefix = prefix.rstrip("/")
        self.storage_options = dict(storage_options or {})

    @classmethod
    def create(cls, prefix_path: str, **options: Any) -> Store:
        """Returns a store, as Horovod's `Store.create` does."""
        return cls(prefix_path, **options)

    def run_folder(self, run_id: str) -> str:
        """Returns the address of the folder of a training."""
        return self.join(self.prefix, run_id)

    def checkpoint(self, run_id: str) -> str:
        """Returns the address of the model of a training."""
        return self.join(self.run_folder(run_id), CHECKPOINT)

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

    def exists(self, address: str) -> bool:
        """Whether there is a file or a folder."""
        from pyarrow import fs

        system, path = self.file_system(address)
        return system.get_file_info(path).type != fs.FileType.NotFound

    def read(self, address: str) -> bytes:
        """Returns what a file has."""
        system, path = self.file_system(address)
        with system.open_input_file(path) as file:
            return bytes(file.read())

    def write(self, address: str, data: bytes) -> None:
        """Makes a file."""
        system, path = self.file_system(address)
        system.create_dir(posixpath.dirname(path))
        with system.open_output_stream(path) as file:
            file.write(data)

    def write_rows(self, frame: Any, address: str) -> None:
        """Writes a DataFrame of Spark as Parquet, in place of what is there."""
        is_local = self.local_path(address) is not None
        is_of_spark = is_local or address.startswith("hdfs:")
        if is_of_spark and not self.storage_options:
            own = address if ":" in address else f"file://{address}"
            frame.write.mode("overwrite").parquet(own)
            return
        if self.exists(address):
            system, path = self.file_system(address)
            system.delete_dir(path)

        def write_part(batches: Iterator[Any]) -> Iterator[Any]:
            yield _write_part(batches, *self.file_system(address))

        frame.mapInArrow(write_part, "num_rows long").collect()

    def rows(self, address: str) -> Any:
        """Returns the `pyarrow.dataset.Dataset` of a folder of Parquet."""
        from pyarrow import dataset

        system, path = self.file_system(address)
        return dataset.dataset(path, filesystem=system, format="parquet")

    def file_system(self, address: str) -> tuple[Any, str]:
        """Returns the `pyarrow.fs.FileSystem` of an address, and its path."""
        from pyarrow import fs

        local = self.local_path(address)
        if local is not None:
            return fs.LocalFileSystem(), local
        if not self.storage_options:
            with contextlib.suppress(Exception):  # fsspec knows more kinds
                found = fs.FileSystem.from_uri(
                    address.replace("s3a://", "s3://", 1)
                )
                return found[0], str(found[1])
        import fsspec

        system, path = fsspec.core.url_to_fs(address, **self.storage_options)
        return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def _write_part(batches: Iterator[Any], system: Any, folder: str) -> Any:
    """Writes the rows of a task into a file; returns their number as a batch.

    A task that Spark runs again writes the same file again.
    """
    import pyarrow as pa
    from pyarrow import parquet

    from hvd_keras.spark import _barrier

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
