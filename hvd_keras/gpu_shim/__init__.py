"""The library that tells the stream of a TensorFlow kernel on a GPU.

There is one for each minor version of TensorFlow. `python -m
hvd_keras.gpu_shim` builds that of the TensorFlow that is installed, with its
headers and a C++ compiler; no CUDA is needed.
"""

from __future__ import annotations

import pathlib

BUILD_COMMAND = "python -m hvd_keras.gpu_shim"
SOURCE = pathlib.Path(__file__).with_name("stream.cc")


def path(version: tuple[int, int]) -> pathlib.Path:
    """Where the library of this minor version of TensorFlow is, or would be."""
    major, minor = version
    name = f"libhvd_tf_gpu_{major}_{minor}.so"
    return pathlib.Path(__file__).parents[1] / name
