"""Compiles tf_ops/gpu/scale_kernel.h into tf_ops/gpu/scale.ptx.

    pip install nvidia-cuda-nvrtc-cu12
    python tools/make_scale_ptx.py path/of/libnvrtc.so.12

It needs no GPU. The PTX is that of the oldest GPU and driver that we support;
the driver compiles it for its GPU.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parents[1] / "tf_ops" / "gpu"
OPTIONS = (b"--gpu-architecture=compute_60", b"--std=c++17")
# Of CUDA 12.0, whose drivers read no newer one.
PTX_VERSION = ".version 8.0"


def compile_ptx(library: str) -> str:
    """Returns the PTX of the kernels.

    Args:
        library: The path of NVRTC.
    """
    nvrtc = ctypes.CDLL(library)
    source = (FOLDER / "scale_kernel.h").read_bytes()
    program = ctypes.c_void_p()
    name = b"scale_kernel.h"
    create = nvrtc.nvrtcCreateProgram
    assert create(ctypes.byref(program), source, name, 0, None, None) == 0
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        sys.exit(_text(nvrtc, "ProgramLog", program))
    text = _text(nvrtc, "PTX", program)
    lines = re.sub(r"//[^\n]*", "", text).splitlines()
    kept = "\n".join(line.rstrip() for line in lines if line.strip())
    return re.sub(r"\.version \S+", PTX_VERSION, kept)


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode()


def main() -> None:
    """Writes the PTX; the build makes a C++ string of it."""
    (FOLDER / "scale.ptx").write_text(f"{compile_ptx(sys.argv[1])}\n")


if __name__ == "__main__":
    main()
