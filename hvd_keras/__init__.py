"""Data-parallel training of Keras 3 models on TensorFlow, JAX and torch.

Names are imported when they are first used: `import hvd_keras` alone imports
neither TensorFlow nor Keras.
"""

from __future__ import annotations

import importlib
import os
import types
from typing import TYPE_CHECKING, Any

from hvd_keras._common.lazy import importer
from hvd_keras._common.when_imported import call_when_imported

if TYPE_CHECKING:
    from hvd_keras import callbacks, data, elastic, exceptions
    from hvd_keras._backends.barrier import barrier
    from hvd_keras._gradients.aggregation import set_aggregation
    from hvd_keras._gradients.local_updates import LocalUpdates
    from hvd_keras.basics import (
        autotune_changes,
        ccl_built,
        check_num_rank_power_of_2,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        dump_flight_record,
        gloo_built,
        gloo_enabled,
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
        stats,
        stop_timeline,
    )
    from hvd_keras.compression import (
        Compression,
        Compressor,
    )
    from hvd_keras.data import shard
    from hvd_keras.equality import assert_equal_on_all_ranks
    from hvd_keras.exceptions import (
        ConfigError,
        DamagedFileError,
        FileInUseError,
        HvdError,
        InternalError,
        InvalidArgumentError,
        JobError,
        LaunchError,
        MismatchError,
        NotInitializedError,
        PeerLostError,
        ProcessSetMismatchError,
        RankError,
        ShutdownError,
        StalledError,
        StrictError,
    )
    from hvd_keras.gradient_tape import (
        DistributedGradientTape,
        PartialDistributedGradientTape,
    )
    from hvd_keras.layers import (
        SyncBatchNormalization,
        convert_sync_batch_normalization,
    )
    from hvd_keras.losses import global_mean
    from hvd_keras.objects import (
        allgather_object,
        broadcast_object,
        broadcast_object_fn,
    )
    from hvd_keras.ops.allgather import allgather
    from hvd_keras.ops.allreduce import allreduce
    from hvd_keras.ops.alltoall import alltoall
    from hvd_keras.ops.broadcast import broadcast
    from hvd_keras.ops.broadcast_in_place import broadcast_
    from hvd_keras.ops.grouped_allgather import grouped_allgather
    from hvd_keras.ops.grouped_allreduce import grouped_allreduce
    from hvd_keras.ops.grouped_reducescatter import grouped_reducescatter
    from hvd_keras.ops.join import join
    from hvd_keras.ops.reducescatter import reducescatter
    from hvd_keras.ops.topology import (
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        size_op,
    )
    from hvd_keras.optimizer import (
        DistributedOptimizer,
        PartialDistributedOptimizer,
    )
    from hvd_keras.prediction import predict
    from hvd_keras.process_set import (
        ProcessSet,
        add_process_set,
        global_process_set,
        process_set_by_id,
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
    from hvd_keras.run.function import run
    from hvd_keras.saving import load_model
    from hvd_keras.strategy import HvdStrategy, Strategy
    from hvd_keras.variables import (
        broadcast_global_variables,
        broadcast_variables,
    )
    from hvd_keras.warmup import Warmup

    __version__: str

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "ConfigError",
    "DamagedFileError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "FileInUseError",
    "HvdError",
    "HvdStrategy",
    "InternalError",
    "InvalidArgumentError",
    "JobError",
    "LaunchError",
    "LocalUpdates",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "PeerLostError",
    "ProcessSet",
    "ProcessSetMismatchError",
    "Product",
    "RankError",
    "ReduceOp",
    "ShutdownError",
    "StalledError",
    "Strategy",
    "StrictError",
    "Sum",
    "SyncBatchNormalization",
    "Warmup",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "assert_equal_on_all_ranks",
    "autotune_changes",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_num_rank_power_of_2",
    "convert_sync_batch_normalization",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "dump_flight_record",
    "elastic",
    "exceptions",
    "global_mean",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "predict",
    "process_set_by_id",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "set_aggregation",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stats",
    "stop_timeline",
]

# The module of each name. Names that are missing here are modules themselves.
_HOMES = {
    "_backends.barrier": "barrier",
    "_gradients.aggregation": "set_aggregation",
    "_gradients.local_updates": "LocalUpdates",
    "basics": (
        "autotune_changes ccl_built check_num_rank_power_of_2 cross_rank "
        "cross_size cuda_built ddl_built dump_flight_record gloo_built "
        "gloo_enabled init "
        "is_homogeneous is_initialized local_rank local_size mpi_built "
        "mpi_enabled mpi_threads_supported nccl_built num_rank_is_power_2 rank "
        "rocm_built shutdown size start_timeline stats stop_timeline"
    ),
    "compression": "Compression Compressor",
    "data": "shard",
    "equality": "assert_equal_on_all_ranks",
    "exceptions": (
        "ConfigError DamagedFileError FileInUseError HvdError InternalError "
        "InvalidArgumentError "
        "JobError LaunchError MismatchError NotInitializedError PeerLostError "
        "ProcessSetMismatchError RankError ShutdownError StalledError "
        "StrictError"
    ),
    "gradient_tape": "DistributedGradientTape PartialDistributedGradientTape",
    "layers": "SyncBatchNormalization convert_sync_batch_normalization",
    "losses": "global_mean",
    "objects": "allgather_object broadcast_object broadcast_object_fn",
    "ops.allgather": "allgather",
    "ops.allreduce": "allreduce",
    "ops.alltoall": "alltoall",
    "ops.broadcast": "broadcast",
    "ops.broadcast_in_place": "broadcast_",
    "ops.grouped_allgather": "grouped_allgather",
    "ops.grouped_allreduce": "grouped_allreduce",
    "ops.grouped_reducescatter": "grouped_reducescatter",
    "ops.join": "join",
    "reduce_op": "Adasum Average Max Min Product ReduceOp Sum",
    "ops.reducescatter": "reducescatter",
    "ops.topology": (
        "local_rank_op local_size_op process_set_included_op rank_op size_op"
    ),
    "optimizer": "DistributedOptimizer PartialDistributedOptimizer",
    "prediction": "predict",
    "process_set": (
        "ProcessSet add_process_set global_process_set process_set_by_id "
        "remove_process_set"
    ),
    "saving": "load_model",
    "strategy": "HvdStrategy Strategy",
    "variables": "broadcast_global_variables broadcast_variables",
    "warmup": "Warmup",
}
_HOME_OF = {
    name: home for home, names in _HOMES.items() for name in names.split()
}
_imported = importer(__name__, _HOME_OF)


def __getattr__(name: str) -> Any:
    value: Any
    if name in ("callbacks", "data", "elastic", "exceptions", "run"):
        value = importlib.import_module(f"hvd_keras.{name}")
    elif name == "__version__":
        from hvd_keras._common.version import package_version

        value = package_version()
    else:
        try:
            value = _imported(name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            from hvd_keras._common.without_tensorflow import text_of

            raise ModuleNotFoundError(text_of(name), name=error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    hidden = {name for name in globals() if name.startswith("_")}
    return sorted({*hidden, *__all__})


def _part(name: str) -> types.ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def _meet_tensorflow() -> None:
    _part("ops")
    _part("_common.training_calls").watch_tensorflow()
    _part("_values.whole_loops").watch_tensorflow()
    _part("_values.end_weights").watch()


def _meet_torch() -> None:
    _part("_common.training_calls").watch_torch()
    _part("_values.whole_loops").watch_torch()
    _part("_values.end_weights").watch()


# This replaces what `_common/replacement_table.py` lists.
call_when_imported(
    {
        "tensorflow": _meet_tensorflow,
        "keras": lambda: _part("_replacing").install(),
        "jax": lambda: _part("_common.training_calls").watch_jax(),
        "optax": lambda: _part("_common.training_calls").watch_optax(),
        "torch": _meet_torch,
    }
)
if os.environ.get("HVD_VERIFY"):
    importlib.import_module(f"{__name__}._verify.start").begin()
