"""Finds CUDA and NCCL, and connects the GPUs of the ranks.

They are not needed to install or import hvd_keras. The core looks for them in
the places that `set_libraries` has given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from hvd_keras import _native
from hvd_keras import config as config_module
from hvd_keras.config import Config
from hvd_keras.exceptions import InternalError

# Their paths in the NVIDIA wheels, below a folder of `sys.path`.
_CUDA_RUNTIMES = (
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "nvidia/cu13/lib/libcudart.so.13",
)
_NCCLS = ("nvidia/nccl/lib/libnccl.so.2",)
_CONNECT = "hvd_keras.init.gpu"


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


def connect(local_rank: int) -> None:
    """Connects the GPUs of all ranks; every rank calls it.

    Raises:
        InternalError: A rank has no GPU, no memory on it or no NCCL. All ranks
            raise this; it says which rank and why.
    """
    ordinal = _ordinal(local_rank)
    _native.core().gpu_submit("barrier", _CONNECT, [], ordinal, 0).wait()


def split(process_set_ids: Iterable[int], local_rank: int) -> None:
    """Makes the NCCL communicators of process sets; every rank calls it.

    It splits them off the communicator of all ranks, made by `connect`.
    """
    for process_set_id in process_set_ids:
        _native.core().gpu_split(process_set_id, _CONNECT, _ordinal(local_rank))


def _ordinal(local_rank: int) -> int:
    return local_rank if local_rank < _native.core().gpu_count() else 0


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
