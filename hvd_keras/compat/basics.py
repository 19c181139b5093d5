"""Start, end, ranks and sizes, as in all of Horovod's modules."""

from __future__ import annotations

from typing import Any

from packaging import version

from hvd_keras.basics import (
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    num_rank_is_power_2,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_keras.compat._missing import missing_module
from hvd_keras.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hvd_keras.reduce_op import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "extension_available",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "is_version_greater_equal_than",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def handle_average_backwards_compatibility(
    op: ReduceOp | int | None, average: bool | None
) -> ReduceOp:
    """Returns the reduction for a call that may use the old `average=`.

    Raises:
        ValueError: Both are given.
    """
    if average is None:
        return Average if op is None else ReduceOp(op)
    if op is not None:
        raise ValueError(
            "`op` and its old form `average` exclude each other. Received: "
            f"op={op!r}, average={average!r}."
        )
    return Average if average else Sum


def gloo_built(verbose: bool = False) -> bool:
    """True: programs ask this to learn whether they can do without MPI."""
    del verbose
    return True


def gloo_enabled() -> bool:
    """True. See `gloo_built`."""
    return True


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether hvd_keras replaces `horovod.<ext_base_name>`."""
    del verbose
    return ext_base_name in ("tensorflow", "torch")


def check_extension(
    ext_name: str, ext_env_var: str, pkg_path: str, *args: Any
) -> None:
    """Raises ImportError unless hvd_keras replaces the module `ext_name`."""
    del ext_env_var, pkg_path, args
    if not extension_available(ext_name.rpartition(".")[2]):
        raise missing_module(ext_name, "it is not one of these")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version, such as "2.21.0", is `target` or a later one."""
    return version.parse(ver) >= version.parse(target)


def gpu_available(ext_base_name: Any = None, verbose: bool = False) -> bool:
    """Whether torch, if that is the extension, or TensorFlow sees a GPU."""
    del verbose
    if ext_base_name == "torch":
        import torch

        return bool(torch.cuda.is_available())
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
