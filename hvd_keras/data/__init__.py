"""Data for training on several ranks."""

from hvd_keras.data.sharding import shard

__all__ = ["shard"]
