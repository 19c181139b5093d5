"""The native libraries: `_core`, the ops, the handlers of XLA; finding CUDA."""

from hvd_keras._native.libraries import (
    core,
    ops,
    sees_gpu,
    xla,
    xla_blocks,
    xla_call_module,
    xla_problem,
)

__all__ = [
    "core",
    "ops",
    "sees_gpu",
    "xla",
    "xla_blocks",
    "xla_call_module",
    "xla_problem",
]
