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
    optimizer = target(**arguments)
    # A class of this optimizer alone.
    type(optimizer)._allreduce_grad_async = _allreduce_grad_async
    return optimizer


def _allreduce_grad_async(_optimizer: Any, parameter: Any) -> tuple[Any, Any]:
    """Begins to average a gradient over the ranks.

    Others look for this private name to know a distributed optimizer by.

    Returns:
        A handle, and nothing, where Horovod returns the context of compression.
    """
    return ours.allreduce_async_(parameter.grad), None


DistributedOptimizer = forwarding(
    ours.DistributedOptimizer,
    "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    call=_call,
    named_parameters=None,
)
