"""A library that finds the GPU and the CUDA stream of a TensorFlow kernel.

Each minor version of TensorFlow needs its own. Wheels hold some. The command
`python -m hvd_keras.gpu_shim` builds the one for the installed TensorFlow, with
its headers and a C++ compiler. It needs no CUDA.
"""

from __future__ import annotations

import pathlib

BUILD_COMMAND = "python -m hvd_keras.gpu_shim"
FUNCTION = "hvd_tf_place"
SOURCE = pathlib.Path(__file__).with_name("stream.cc")
ABSENT = pathlib.Path(__file__).with_name("absent")  # headers that may lack


def path(version: tuple[int, int]) -> pathlib.Path:
    """The path of the library for a minor version; it may not exist."""
    major, minor = version
    name = f"libhvd_tf_gpu_{major}_{minor}.so"
    return pathlib.Path(__file__).parents[1] / name
