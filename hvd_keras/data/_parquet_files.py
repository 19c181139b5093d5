"""Parquet files, by pyarrow: it reads a group of rows at once."""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import tensorflow as tf

from hvd_keras.data._opened_files import OpenedFile, Row, blocks_of
from hvd_keras.data._record_index import Index
from hvd_keras.exceptions import InvalidArgumentError


class ParquetFile(OpenedFile):
    """A Parquet file whose columns have values of one shape."""

    def __init__(self, path: str, num_kept: int) -> None:
        import pyarrow
        import pyarrow.parquet

        super().__init__(path, num_kept)
        self._errors = (pyarrow.ArrowException, OSError)
        try:
            self._file = pyarrow.parquet.ParquetFile(
                path, page_checksum_verification=True
            )
        except self._errors as error:
            raise self.damaged(0, 0, str(error)) from error
        self._lock = threading.Lock()
        self._group = functools.lru_cache(maxsize=num_kept)(self._columns_of)

    def index(self, *, checks: bool) -> tuple[list[tuple[int, int]], int, int]:
        metadata = self._file.metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        firsts = itertools.accumulate((g.num_rows for g in groups), initial=0)
        begins = [group.column(0).file_offset for group in groups]
        blocks = list(zip(begins, firsts, strict=False))
        return blocks, metadata.num_rows, self.num_bytes

    @functools.cached_property
    def spec(self) -> Any:
        return {
            field.name: self._spec_of(field)
            for field in sorted(self._file.schema_arrow, key=lambda f: f.name)
        }

    def _spec_of(self, field: Any) -> tf.TensorSpec:
        from pyarrow import types

        kind, shape = field.type, []
        if types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, [kind.list_size]
        texts = (types.is_string, types.is_large_string, types.is_binary)
        if not shape and any(is_text(kind) for is_text in texts):
            return tf.TensorSpec([], tf.string)
        numbers = (types.is_integer, types.is_floating, types.is_boolean)
        if any(is_number(kind) for is_number in numbers):
            return tf.TensorSpec(
                shape, tf.dtypes.as_dtype(kind.to_pandas_dtype())
            )
        raise InvalidArgumentError(
            f"{self.path}: column {field.name!r} must have numbers, texts or "
            f"lists of a fixed number of numbers. Received: {field.type}."
        )

    def read(self, rows: list[int], index: Index) -> list[Row]:
        firsts = blocks_of(index)[:, 1]
        groups = firsts.searchsorted(rows, side="right") - 1
        with self._lock:  # pyarrow crashes if two threads read of one file
            return [
                [c[row - firsts[group]] for c in self._group(int(group))]
                for row, group in zip(rows, groups, strict=True)
            ]

    def _columns_of(self, group: int) -> list[Any]:
        try:
            # Threads of its own would be in the way of those of tf.data.
            table = self._file.read_row_group(
                group, list(self.spec), use_threads=False
            )
        except self._errors as error:
            metadata = self._file.metadata
            sizes = (metadata.row_group(g).num_rows for g in range(group))
            offset = metadata.row_group(group).column(0).file_offset
            raise self.damaged(sum(sizes), offset, str(error)) from error
        columns = []
        for name, spec in self.spec.items():
            column = table.column(name).combine_chunks()
            if column.null_count:
                raise InvalidArgumentError(
                    f"{self.path}: column {name!r} must have no nulls."
                )
            if spec.dtype == tf.string:
                columns.append(
                    [
                        text.encode() if isinstance(text, str) else text
                        for text in column.to_pylist()
                    ]
                )
            else:
                flat = column.flatten() if spec.shape.rank else column
                values = flat.to_numpy(zero_copy_only=False)
                columns.append(values.reshape(len(column), *spec.shape))
        return columns
