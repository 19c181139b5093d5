"""Builds the wheels of a release, and the sdist, into dist/.

    python tools/build_wheels.py [--machine M ...] [--python VERSION ...]

Clang, from the wheel of Zig, compiles for x86-64 and for aarch64 against an old
glibc; so the wheels run on Linux since 2018. The headers of Python come from
each interpreter, on the PATH or of pyenv, for both machines: they differ in
nothing that an extension sees (compared for Debian's 3.11). GPU shims are for
x86-64 alone, where TensorFlow's wheels know CUDA. g++ builds them, because
TensorFlow's classes have the layout of its C++ library. At last auditwheel says
whether each wheel is what its name says.

All this happens in build/wheels, and is incremental.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import build_gpu_shims
from extra_venv import make_venv, requirements, run

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / "build" / "wheels"
_DIST = _ROOT / "dist"
_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
_MACHINES = ["x86_64", "aarch64"]
_GLIBC = "2.28"
_TENSORFLOWS = ["2.18.1", "2.19.1", "2.20.0", "2.21.0"]


def find_python(version: str) -> str:
    """Returns the path of an interpreter that has its headers."""
    asks = (
        "import os, sys, sysconfig as s; assert '%d.%d' % sys.version_info[:2]"
        f" == '{version}'; os.stat(s.get_path('include') + '/Python.h')"
    )
    here = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for path in [shutil.which(f"python{version}"), *sorted(here)]:
        if path is None:
            continue
        tried = [str(path), "-c", asks]
        if not subprocess.run(
            tried, capture_output=True, check=False
        ).returncode:
            return str(path)
    sys.exit(
        f"Found no Python {version} with its headers, on the PATH or of pyenv. "
        "Install it, or name those to build for: --python VERSION ..."
    )


def write_compilers(machine: str, tools: Path) -> dict[str, str]:
    """Writes scripts that run Clang for a machine, and returns CC and CXX.

    Their names tell ccache which kind of compiler they are.
    """
    (zig,) = tools.parent.glob("lib/python3*/site-packages/ziglang/zig")
    found = {}
    for variable, command, name in [
        ("CC", "cc", "clang"),
        ("CXX", "c++", "clang++"),
    ]:
        script = _FOLDER / machine / name
        script.parent.mkdir(parents=True, exist_ok=True)
        target = f"{machine}-linux-gnu.{_GLIBC}"
        text = f'#!/bin/sh\nexec "{zig}" {command} -target {target} "$@"\n'
        if not script.exists() or script.read_text() != text:
            script.write_text(text)
            script.chmod(0o755)
        found[variable] = str(script)
    return found


def build_wheel(version: str, machine: str, tools: Path) -> Path:
    """Builds one wheel in build/wheels, and returns its path."""
    tag = f"cp{version.replace('.', '')}"
    needed = requirements("requires")
    venv = make_venv(_FOLDER / tag, needed, find_python(version))
    folder = _FOLDER / machine / tag
    shutil.rmtree(folder, ignore_errors=True)
    platform = f"manylinux_{_GLIBC.replace('.', '_')}-{machine}"
    suffix = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
    arguments = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    arguments += ["-DCMAKE_SYSTEM_NAME=Linux"]
    arguments += [f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    # Without the debug information of Zig's C++ library: 20 MB a file. Each of
    # our libraries has its copy of that library. They must not mix: a stream
    # that one has made crashes when another one ends it.
    flags = f"-s -Wl,--version-script={_ROOT / 'tools' / 'own_runtime.map'}"
    arguments += [f"-DCMAKE_SHARED_LINKER_FLAGS={flags}"]
    arguments += [f"-DCMAKE_MODULE_LINKER_FLAGS={flags}"]
    run(
        *(venv / "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
        *("-w", folder, "."),
        PATH=f"{venv}:{tools}:{os.environ['PATH']}",
        _PYTHON_HOST_PLATFORM=platform,  # Python's own, for other machines
        SETUPTOOLS_EXT_SUFFIX=suffix,
        HVD_GPU_SHIMS=str(_FOLDER / "shims") if machine == "x86_64" else "",
        CMAKE_ARGS=shlex.join(arguments),
        **write_compilers(machine, tools),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_wheel(wheel: Path, tools: Path) -> Path:
    """Has auditwheel say which glibc a wheel needs, and copies it to dist/.

    The name gets that glibc too. `auto`, for auditwheel refuses the name of a
    platform that is not this machine's.

    TensorFlow's library is not part of a system, and is there when ours is
    loaded.
    """
    checked = wheel.parent / "checked"
    run(
        *(tools / "auditwheel", "repair", "--plat", "auto", "--only-plat"),
        *("--exclude", "libtensorflow_framework.so.2"),
        *("-w", checked, wheel),
        PATH=f"{tools}:{os.environ['PATH']}",
    )
    (found,) = checked.glob("*.whl")
    needed = re.findall(r"manylinux_(\d+)_(\d+)_", found.name)
    limit = tuple(int(part) for part in _GLIBC.split("."))
    if not needed or any((int(a), int(b)) > limit for a, b in needed):
        sys.exit(f"{found.name} needs a glibc above {_GLIBC}.")
    _DIST.mkdir(exist_ok=True)
    return Path(shutil.copy2(found, _DIST / found.name))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", nargs="+", default=_MACHINES,
                        choices=_MACHINES)  # fmt: skip
    parser.add_argument("--python", nargs="+", default=_PYTHONS,
                        choices=_PYTHONS)  # fmt: skip
    wanted = parser.parse_args()
    tools = make_venv(_FOLDER / "tools", requirements("wheels"))
    if "x86_64" in wanted.machine:
        build_gpu_shims.main(_FOLDER / "shims", _TENSORFLOWS)
    for machine in wanted.machine:
        for version in wanted.python:
            wheel = check_wheel(build_wheel(version, machine, tools), tools)
            print(f"{wheel}: {wheel.stat().st_size >> 10} KiB", flush=True)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", _DIST)
    print(*_DIST.glob("*.tar.gz"))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
