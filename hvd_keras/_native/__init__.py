"""The native libraries: `_core`, the ops, the handlers of XLA; finding CUDA."""

from hvd_keras._native.libraries import core, ops, xla

__all__ = ["core", "ops", "xla"]
