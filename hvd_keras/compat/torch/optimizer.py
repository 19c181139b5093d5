"""`horovod.torch.optimizer`."""

from __future__ import annotations

from typing import Any

from hvd_keras import torch as ours
from hvd_keras.compat._forwarding import Function, forwarding

__all__ = ["DistributedOptimizer"]


def _call(target: Function, arguments: dict[str, Any]) -> Any:
    num_groups = arguments.pop("num_groups")
    if arguments["groups"] is None and num_groups:
        arguments["groups"] = num_groups  # its old name
    return target(**arguments)


DistributedOptimizer = forwarding(
    ours.DistributedOptimizer,
    "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    call=_call,
    named_parameters=None,
)
