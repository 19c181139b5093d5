"""Builds the shim for the installed TensorFlow."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Sequence

from hvd_keras import gpu_shim


def build(target: pathlib.Path, flags: Sequence[str]) -> None:
    """Builds the library as `target`, and loads it as a test.

    Args:
        target: The file to write.
        flags: Compiler flags, as from `tf.sysconfig.get_compile_flags`.

    Raises:
        subprocess.CalledProcessError: The compiler failed.
        ImportError: The library does not load, or lacks its function.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    # TensorFlow's headers cause many warnings. Its symbols stay undefined
    # until it is loaded.
    command = [
        *shlex.split(os.environ.get("CXX", "g++")),
        *("-shared", "-fPIC", "-O2", "-DNDEBUG", "-w"),
        *flags,
        *("-idirafter", str(gpu_shim.ABSENT)),
        *(str(gpu_shim.SOURCE), "-o", str(temporary)),
    ]
    try:
        subprocess.run(command, check=True)
        try:
            library = ctypes.CDLL(str(temporary))
        except OSError as error:
            raise ImportError(str(error)) from None
        if not hasattr(library, gpu_shim.FUNCTION):
            raise ImportError(
                f"{target.name} has no function {gpu_shim.FUNCTION}"
            )
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def main() -> int:
    """Builds the library beside the others of the package.

    Returns:
        0, or 1 after printing why it failed.
    """
    import tensorflow as tf

    major, minor = map(int, tf.__version__.split(".")[:2])
    target = gpu_shim.path((major, minor))
    try:
        build(target, tf.sysconfig.get_compile_flags())
    except (subprocess.CalledProcessError, OSError, ImportError) as error:
        print(f"The shim was not built: {error}", file=sys.stderr)
        return 1
    print(f"TensorFlow {tf.__version__}: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
