"""`horovod.torch.functions`: sends parameters and objects between ranks."""

from __future__ import annotations

from typing import Any

from hvd_keras import torch as ours
from hvd_keras._common.ignored import ignoring
from hvd_keras.compat._forwarding import Function, forwarding

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _without_model(target: Function, arguments: dict[str, Any]) -> Any:
    del arguments["model"]  # ours finds the state in the optimizer
    return target(**arguments)


broadcast_parameters = forwarding(
    ours.broadcast_parameters, "params root_rank process_set"
)
broadcast_optimizer_state = ignoring(
    "horovod.torch.broadcast_optimizer_state", "model"
)(
    forwarding(
        ours.broadcast_optimizer_state,
        "optimizer root_rank model process_set",
        call=_without_model,
        model=None,
    )
)
broadcast_object = forwarding(
    ours.broadcast_object, "obj root_rank name process_set", root_rank=0
)
allgather_object = forwarding(ours.allgather_object, "obj name process_set")
