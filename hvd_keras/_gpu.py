"""Finds CUDA and NCCL, and connects the GPUs of the ranks.

Nothing of them is needed to install or to import hvd_keras.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hvd_keras import _native
from hvd_keras import config as config_module
from hvd_keras._bootstrap import Topology
from hvd_keras.config import Config

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


def connect(topology: Topology) -> None:
    """Connects the GPUs of all ranks; every rank calls it.

    Raises:
        InternalError: On all ranks, if one of them has no GPU, no memory on it
            or no NCCL; it says which and why.
    """
    count = _native.core().gpu_count()
    ordinal = topology.local_rank if topology.local_rank < count else 0
    _native.core().gpu_submit("barrier", _CONNECT, [], ordinal, 0).wait()


def _files(names: tuple[str, ...]) -> list[str]:
    # Not importlib: it would read the records of all wheels.
    folders = [Path(entry) for entry in sys.path if entry]
    return [
        str(folder / name)
        for name in names
        for folder in folders
        if (folder / name).is_file()
    ]
