"""Finds CUDA and NCCL, and connects the GPUs of the ranks.

Nothing of them is needed to install or to import hvd_keras. They are looked for
where `set_libraries` has said.
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

# Where the NVIDIA wheels keep them, below a folder of `sys.path`.
_CUDA_RUNTIMES = (
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "nvidia/cu13/lib/libcudart.so.13",
)
_NCCLS = ("nvidia/nccl/lib/libnccl.so.2",)
_CONNECT = "hvd_keras.init.gpu"


def set_libraries(config: Config) -> None:
    """Tells the core where to look for CUDA and NCCL; opens nothing.

    `HVD_NCCL_*` become the settings of NCCL, which reads them when it is
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
        InternalError: On all ranks, if one of them has no GPU, no memory on it
            or no NCCL; it says which and why.
    """
    ordinal = _ordinal(local_rank)
    _native.core().gpu_submit("barrier", _CONNECT, [], ordinal, 0).wait()


def split(process_set_ids: Iterable[int], local_rank: int) -> None:
    """Makes the communicators of process sets; every rank calls it.

    They are split off that of all ranks, which `connect` has made.
    """
    for process_set_id in process_set_ids:
        _native.core().gpu_split(process_set_id, _CONNECT, _ordinal(local_rank))


def _ordinal(local_rank: int) -> int:
    return local_rank if local_rank < _native.core().gpu_count() else 0


def nccl_version() -> int:
    """The number of the NCCL that is found, such as 22707; 0: none."""
    text = _found("gpu_nccl_version")
    if text is None:
        return 0
    major, minor, patch = map(int, text.split()[0].split("."))
    return major * 10000 + minor * 100 + patch


def has_cuda() -> bool:
    """Whether a CUDA runtime is found; there may be no GPU."""
    return _found("gpu_cuda_version") is not None


def problem() -> str | None:
    """Why collectives cannot run on GPUs; None: CUDA and NCCL are found."""
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
    # Not importlib: it would read the records of all wheels.
    folders = [Path(entry) for entry in sys.path if entry]
    return [
        str(folder / name)
        for name in names
        for folder in folders
        if (folder / name).is_file()
    ]
