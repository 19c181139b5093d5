"""Keras layers that work over the ranks."""

from hvd_keras.layers.convert import convert_sync_batch_normalization
from hvd_keras.layers.sync_batch_normalization import SyncBatchNormalization

__all__ = ["SyncBatchNormalization", "convert_sync_batch_normalization"]
