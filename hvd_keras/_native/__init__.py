"""Loads the native libraries (core, ops, XLA handlers), and finds CUDA."""

from hvd_keras._native.libraries import core, ops, xla

__all__ = ["core", "ops", "xla"]
