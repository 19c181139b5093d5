"""Data-parallel training of Keras 3 models on TensorFlow.

Nothing is imported until it is used: `import hvd_keras` brings in neither
TensorFlow nor Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_keras import callbacks, exceptions
    from hvd_keras.basics import (
        cross_rank,
        cross_size,
        init,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
        stats,
    )
    from hvd_keras.exceptions import (
        ConfigError,
        HvdError,
        InternalError,
        InvalidArgumentError,
        LaunchError,
        MismatchError,
        NotInitializedError,
        PeerLostError,
        ShutdownError,
        StalledError,
    )
    from hvd_keras.objects import allgather_object, broadcast_object
    from hvd_keras.ops.allgather import allgather
    from hvd_keras.ops.allreduce import allreduce
    from hvd_keras.ops.broadcast import broadcast
    from hvd_keras.ops.grouped_allreduce import grouped_allreduce
    from hvd_keras.ops.reduce_op import (
        Average,
        Max,
        Min,
        Product,
        ReduceOp,
        Sum,
    )
    from hvd_keras.optimizer import DistributedOptimizer
    from hvd_keras.variables import broadcast_variables

    __version__: str

__all__ = [
    "Average",
    "ConfigError",
    "DistributedOptimizer",
    "HvdError",
    "InternalError",
    "InvalidArgumentError",
    "LaunchError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "Product",
    "ReduceOp",
    "ShutdownError",
    "StalledError",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "exceptions",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "stats",
]

# Where each name lives; what is not here is a module of its own.
_HOMES = {
    "basics": (
        "cross_rank cross_size init is_initialized local_rank local_size "
        "rank shutdown size stats"
    ),
    "exceptions": (
        "ConfigError HvdError InternalError InvalidArgumentError LaunchError "
        "MismatchError NotInitializedError PeerLostError ShutdownError "
        "StalledError"
    ),
    "objects": "allgather_object broadcast_object",
    "ops.allgather": "allgather",
    "ops.allreduce": "allreduce",
    "ops.broadcast": "broadcast",
    "ops.grouped_allreduce": "grouped_allreduce",
    "ops.reduce_op": "Average Max Min Product ReduceOp Sum",
    "optimizer": "DistributedOptimizer",
    "variables": "broadcast_variables",
}
_HOME_OF = {
    name: home for home, names in _HOMES.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    value: Any
    if name in ("callbacks", "exceptions"):
        value = importlib.import_module(f"hvd_keras.{name}")
    elif name == "__version__":
        from hvd_keras import _startup

        value = _startup.package_version()
    elif name in _HOME_OF:
        home = importlib.import_module(f"hvd_keras.{_HOME_OF[name]}")
        value = getattr(home, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
