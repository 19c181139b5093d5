"""Loads the native libraries (core, ops, XLA handlers), and finds CUDA."""

from hvd_keras._native.libraries import (
    core,
    core_library,
    ops,
    register_ops,
    xla,
)

__all__ = ["core", "core_library", "ops", "register_ops", "xla"]
