"""Data for training on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._common.lazy import importer
from hvd_keras.data.sharding import shard

if TYPE_CHECKING:
    from hvd_keras.data._by_number import records
    from hvd_keras.data._whole_files import files

__all__ = ["files", "records", "shard"]

__getattr__ = importer(
    __name__, {"files": "_whole_files", "records": "_by_number"}
)
