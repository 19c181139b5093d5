"""What is built and found on this machine: `hvdrun --check`."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hvd_keras import gpu_shim
from hvd_keras._common import replacements
from hvd_keras._common.version import TRIED_KERAS, installed
from hvd_keras.config import Config
from hvd_keras.run.ranks import environment
from hvd_keras.run.spec import JobSpec

_PACKAGE = Path(__file__).resolve().parents[2]
_LOAD_SECONDS = 120
_LOAD_OPS = """
import hvd_keras
hvd_keras.allreduce
from hvd_keras import _native
_native.ops()
"""


def print_report(*, verbose: bool = False) -> int:
    """Prints one line for each part, and says which parts are missing.

    Args:
        verbose: Whether to print what hvd_keras replaces in other packages.

    Returns:
        0 if a job can run here, else 1.
    """
    rows: list[tuple[str, Callable[[], str]]] = [
        ("hvd_keras", lambda: f"{_version('hvd-keras')} in {_PACKAGE}"),
        ("Python", lambda: f"{platform.python_version()}, {sys.executable}"),
        ("system", lambda: f"{platform.platform()}, {_cores()}"),
        ("TensorFlow", _tensorflow),
        ("Keras", _keras),
        ("core", _core),
        ("transports", _transports),
        ("TensorFlow ops", _ops),
    ]
    for_gpus: list[tuple[str, Callable[[], str]]] = [
        ("GPUs", _gpus),
        ("CUDA runtime", lambda: _gpu_library("gpu_cuda_version")),
        ("NCCL", lambda: _gpu_library("gpu_nccl_version")),
        ("GPU shim", _shim),
    ]
    driver = _driver()
    if driver:
        rows += [("CUDA driver", lambda: driver), *for_gpus]
    else:
        rows.append(("GPUs", lambda: "none: there is no CUDA driver"))
    is_complete, num_gpus = True, ""
    for name, find in rows:
        try:
            found = find()
        except _MissingError as missing:
            found = f"NOT FOUND: {missing}"
            is_complete = False
        print(f"{name:<15} {found}", flush=True)
        if name == "GPUs":
            num_gpus = found
    if is_complete and num_gpus[:1] in ("0", "n"):
        print("Ready to train on CPUs.")
    if verbose:
        print("\nReplaced in other packages, where these are imported:")
        print(*replacements.lines(), sep="\n")
    return 0 if is_complete else 1


def test_job(spec: JobSpec) -> JobSpec:
    """Returns the job that trains a small model where `spec` would run."""
    num_ranks = spec.num_ranks
    if (spec.hosts, spec.hostfile, num_ranks) == (None, None, None):
        num_ranks = 2
    return dataclasses.replace(
        spec,
        command=(sys.executable, "-m", "hvd_keras._verify.test_job"),
        num_ranks=num_ranks,
        output=dataclasses.replace(spec.output, has_tags=False),
    )


class _MissingError(Exception):
    pass


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise _MissingError(f"`{name}` is not installed") from None


def _keras() -> str:
    version = _version("keras")
    if ".".join(version.split(".")[:2]) in TRIED_KERAS:
        return version
    return (
        f"{version}, WARNING: hvd_keras was not tried with it, but with Keras "
        f"{', '.join(TRIED_KERAS)}: see docs/versions.md"
    )


def _cores() -> str:
    return f"{environment.num_cores()} cores"


def _tensorflow() -> str:
    found = installed("TensorFlow")
    if found is None:
        raise _MissingError("pip install tensorflow")
    distribution, version = found
    return f"{version} ({distribution})"


def _core() -> str:
    spec = importlib.util.find_spec("hvd_keras._core")
    library = _PACKAGE / "libhvd_core.so"
    if spec is None or not library.exists():
        raise _MissingError(f"not built in {_PACKAGE}")
    return f"{library.name}, {Path(spec.origin or '').name}"


def _transports() -> str:
    try:
        from hvd_keras import _core
    except ImportError as error:
        raise _MissingError(str(error)) from None
    names = ", ".join(_core.transports())
    if _gpus() == "0":
        names = names.replace("nccl", "nccl (needs a GPU)")
    return names


def _ops() -> str:
    if not (_PACKAGE / "libhvd_tf.so").exists():
        raise _MissingError(f"libhvd_tf.so is not built in {_PACKAGE}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOAD_OPS],
            cwd=_PACKAGE.parent,  # Python would find sources in another one
            capture_output=True,
            text=True,
            timeout=_LOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _MissingError(f"no answer within {_LOAD_SECONDS} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise _MissingError(f"the ops do not load: {lines[-1]}")
    return "libhvd_tf.so loads"


def _gpus() -> str:
    from hvd_keras import _native
    from hvd_keras._native import gpu

    gpu.set_libraries(Config.from_environ(os.environ))
    return str(_native.core().gpu_count())


def _gpu_library(query: str) -> str:
    """The library found, or why there is none; jobs on CPUs need none."""
    from hvd_keras import _native
    from hvd_keras.exceptions import InternalError

    try:
        return str(getattr(_native.core(), query)())
    except InternalError as error:
        return str(error)


def _shim() -> str:
    version = _tensorflow().split(".")
    shim = gpu_shim.path((int(version[0]), int(version[1])))
    if shim.exists():
        return str(shim)
    return f"not built, needed on GPUs: {gpu_shim.BUILD_COMMAND}"


def _driver() -> str:
    """The version of the driver's interface; "": there is none."""
    try:
        number = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
