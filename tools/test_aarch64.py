"""Builds the C++ tests for aarch64 and runs them under QEMU, on x86-64.

    python tools/test_aarch64.py [ARGUMENT OF CTEST ...]

It needs Debian's qemu-user and libc6-arm64-cross. The compiler is that of the
wheels. QEMU translates each instruction; a program of several threads keeps the
memory order of this machine, which is stronger than that of ARM. So this shows
that the code is right on aarch64 but for memory order: a barrier that is
missing would not be seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from build_wheels import write_compilers
from extra_venv import make_venv, requirements

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / "build" / "test-cc-aarch64"
_LIBRARIES = "/usr/aarch64-linux-gnu"
_TIMEOUT_SECONDS = 1800  # QEMU takes some ten times as long


def main(*arguments: str) -> int:
    qemu = shutil.which("qemu-aarch64")
    if qemu is None or not os.path.isdir(f"{_LIBRARIES}/lib"):
        sys.exit(
            "qemu-aarch64 and the C library of aarch64 must be there. On "
            "Debian: apt-get install qemu-user libc6-arm64-cross"
        )
    tools = make_venv(
        _ROOT / "build" / "wheels" / "tools", requirements("wheels")
    )
    environment = {
        **os.environ,
        **write_compilers("aarch64", tools),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_FLAGS": "-DHVD_EMULATED",
        "CMAKE_CROSSCOMPILING_EMULATOR": f"{qemu};-L;{_LIBRARIES}",
        "CMAKE_EXE_LINKER_FLAGS": "-s",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "HVD_BUILD_PYTHON": "OFF",
        "HVD_BUILD_TESTS": "ON",
        "HVD_TEST_TIMEOUT": str(_TIMEOUT_SECONDS),
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    folder = str(_FOLDER)
    for command in (
        ["cmake", "-S", str(_ROOT), "-B", folder, *defined],
        ["cmake", "--build", folder, "--parallel", str(os.cpu_count())],
        ["ctest", "--test-dir", folder, "--output-on-failure",
         "--no-tests=error", *arguments],
    ):  # fmt: skip
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
