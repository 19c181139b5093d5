"""Finds CUDA and NCCL, and connects the GPUs of the ranks.

They are not needed to install or import hvd_keras. The core looks for them in
the places that `set_libraries` has given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hvd_keras import _native
from hvd_keras import config as config_module
from hvd_keras._native import pinning
from hvd_keras.config import Config
from hvd_keras.exceptions import InternalError

# Their paths in the NVIDIA wheels, below a folder of `sys.path`.
_CUDA_RUNTIMES = (
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "nvidia/cu13/lib/libcudart.so.13",
)
_NCCLS = ("nvidia/nccl/lib/libnccl.so.2",)
_CONNECT = "hvd_keras.init.gpu"

_local_index = 0  # see `pin`


def local_index() -> int:
    """Returns the number of this rank's GPU, as far as `pin` knows it."""
    return _local_index


def pin(config: Config, local_rank: int, local_size: int) -> None:
    """Shows this rank its own GPUs alone; see `pinning.pin`."""
    global _local_index
    if config.gpu_share:
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    _local_index = pinning.pin(config, local_rank, local_size)


def set_libraries(config: Config) -> None:
    """Tells the core where to look for CUDA and NCCL; opens nothing.

    It makes `HVD_NCCL_*` the settings of NCCL, which reads them when it is
    opened.
    """
    os.environ.update(config_module.nccl_variables(os.environ))
    _native.core().gpu_set_libraries(
        cuda_runtime=config.cuda_runtime_library or "",
        nccl=config.nccl_library or "",
        cuda_runtime_wheels=_files(_CUDA_RUNTIMES),
        nccl_wheels=_files(_NCCLS),
    )


def wants_early(
    config: Config, environ: Mapping[str, str], tensorflow: str | None
) -> bool:
    """Whether this rank wants `init()` to connect the GPUs.

    NCCL takes memory, and TensorFlow leaves none once it has begun.

    Args:
        config: The settings.
        environ: Environment variables, usually `os.environ`.
        tensorflow: The installed distribution of TensorFlow; None: none.
    """
    if config.gpu != "auto":
        return config.gpu in ("early", "on")
    return (
        environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
        and tensorflow not in (None, "tensorflow-cpu")
        and pinning.has_own_gpu(config)
        and problem() is None
    )


def connect() -> None:
    """Connects the GPUs of all ranks; every rank calls it.

    Raises:
        InternalError: A rank has no GPU, no memory on it or no NCCL. All ranks
            raise this; it says which rank and why.
    """
    _native.core().gpu_submit("barrier", _CONNECT, [], _ordinal(), 0).wait()


def split(process_set_ids: Iterable[int]) -> None:
    """Makes the NCCL communicators of process sets; every rank calls it.

    It splits them off the communicator of all ranks, made by `connect`.
    """
    for process_set_id in process_set_ids:
        _native.core().gpu_split(process_set_id, _CONNECT, _ordinal())


def _ordinal() -> int:
    return _local_index if _local_index < _native.core().gpu_count() else 0


def nccl_version() -> int:
    """Returns the version of the NCCL that is found: 22707, or 0 for none."""
    text = _found("gpu_nccl_version")
    if text is None:
        return 0
    major, minor, patch = map(int, text.split()[0].split("."))
    return major * 10000 + minor * 100 + patch


def has_cuda() -> bool:
    """Whether a CUDA runtime is found, even if there is no GPU."""
    return _found("gpu_cuda_version") is not None


def problem() -> str | None:
    """Returns why collectives cannot run on GPUs.

    None means that CUDA and NCCL are found.
    """
    try:
        _native.core().gpu_cuda_version()
        _native.core().gpu_nccl_version()
    except InternalError as error:
        return str(error)
    return None


def _found(query: str) -> str | None:
    try:
        return str(getattr(_native.core(), query)())
    except InternalError:
        return None


def _files(names: tuple[str, ...]) -> list[str]:
    # importlib would read the records of all wheels.
    folders = [Path(entry) for entry in sys.path if entry]
    return [
        str(folder / name)
        for name in names
        for folder in folders
        if (folder / name).is_file()
    ]
