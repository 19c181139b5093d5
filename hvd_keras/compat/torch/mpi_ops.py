"""`horovod.torch.mpi_ops`: the collectives, ranks and sizes.

Their gradients are Horovod's too: see docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

import torch

from hvd_keras import torch as ours
from hvd_keras._common.ignored import ignoring
from hvd_keras.compat._forwarding import Function, forwarding
from hvd_keras.compat.basics import *  # noqa: F403
from hvd_keras.compat.basics import __all__ as _basics
from hvd_keras.compat.basics import handle_average_backwards_compatibility
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Sum
from hvd_keras.torch._call import Handle

poll, synchronize = ours.poll, ours.synchronize


def _call(target: Function, arguments: dict[str, Any]) -> Any:
    """Handles the arguments that our functions do not have."""
    if "average" in arguments:
        arguments["op"] = handle_average_backwards_compatibility(
            arguments["op"], arguments.pop("average")
        )
    return target(**arguments)


class _Scaled(torch.autograd.Function):
    """Multiplies the gradient."""

    @staticmethod
    def forward(ctx: Any, factor: float, tensor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        return None, upstream * ctx.factor


def _with_gradient_times(results: Any, factor: float) -> Any:
    if isinstance(results, list):
        return [_with_gradient_times(each, factor) for each in results]
    if not results.requires_grad or factor == 1:
        return results
    return _Scaled.apply(factor, results)


def _call_averaging(target: Function, arguments: dict[str, Any]) -> Any:
    """Calls a collective that averages upstream gradients in Horovod.

    Ours sums them.
    """
    process_set: ProcessSet = arguments["process_set"]
    results = target(**arguments)
    return _with_gradient_times(results, 1 / (process_set.size() or 1))


def _call_multiplying(target: Function, arguments: dict[str, Any]) -> Any:
    """Calls a reducescatter, whose gradient Horovod multiplies by the size."""
    process_set: ProcessSet = arguments["process_set"]
    results = target(**arguments)
    if arguments["op"] not in (None, Average, Sum):
        return results
    return _with_gradient_times(results, process_set.size() or 1)


def _alltoall(tensor: torch.Tensor, splits: Any, **options: Any) -> Any:
    result = ours.alltoall(tensor, _as_counts(splits), **options)
    return _with_tensor(result)


def _alltoall_async(
    tensor: torch.Tensor, splits: Any, **options: Any
) -> Handle:
    handle = ours.alltoall_async(tensor, _as_counts(splits), **options)
    return handle.then(_with_tensor)


def _as_counts(splits: Any) -> Any:
    return splits.tolist() if isinstance(splits, torch.Tensor) else splits


def _with_tensor(result: Any) -> Any:
    """Returns how many rows came from each rank as a tensor, if they are."""
    if isinstance(result, torch.Tensor):
        return result
    rows, received = result
    return rows, torch.tensor(received, dtype=torch.int32, device=rows.device)


def _join(device: int) -> int:
    del device  # ours needs none
    return ours.join()


_FACTORS = "prescale_factor postscale_factor"
_REDUCE = f"average name op {_FACTORS} process_set"


def _reducing(target: Function) -> Function:
    kind = "tensors" if target.__name__.startswith("grouped_") else "tensor"
    arguments = _REDUCE
    if not target.__name__.endswith("_") and "_async" not in target.__name__:
        arguments = _REDUCE.replace("name", "name compression")
    return forwarding(target, f"{kind} {arguments}", call=_call, op=None)


allreduce = _reducing(ours.allreduce)
allreduce_ = _reducing(ours.allreduce_)
allreduce_async = _reducing(ours.allreduce_async)
allreduce_async_ = _reducing(ours.allreduce_async_)
grouped_allreduce = _reducing(ours.grouped_allreduce)
grouped_allreduce_ = _reducing(ours.grouped_allreduce_)
grouped_allreduce_async = _reducing(ours.grouped_allreduce_async)
grouped_allreduce_async_ = _reducing(ours.grouped_allreduce_async_)
allgather = forwarding(
    ours.allgather, "tensor name process_set", call=_call_averaging
)
allgather_async = forwarding(ours.allgather_async, "tensor name process_set")
reducescatter = forwarding(
    ours.reducescatter,
    f"tensor name compression op process_set {_FACTORS}",
    call=_call_multiplying,
)
reducescatter_async = forwarding(
    ours.reducescatter_async,
    f"tensor name op process_set {_FACTORS}",
)
grouped_allgather = forwarding(
    ours.grouped_allgather, "tensors name process_set", call=_call_averaging
)
grouped_allgather_async = forwarding(
    ours.grouped_allgather_async, "tensors name process_set"
)
grouped_reducescatter = forwarding(
    ours.grouped_reducescatter,
    f"tensors name compression op process_set {_FACTORS}",
    call=_call_multiplying,
)
grouped_reducescatter_async = forwarding(
    ours.grouped_reducescatter_async,
    f"tensors name op process_set {_FACTORS}",
)
broadcast = forwarding(
    ours.broadcast,
    "tensor root_rank name process_set",
    call=_call_averaging,
)
broadcast_ = forwarding(ours.broadcast_, "tensor root_rank name process_set")
broadcast_async = forwarding(
    ours.broadcast_async, "tensor root_rank name process_set"
)
broadcast_async_ = forwarding(
    ours.broadcast_async_, "tensor root_rank name process_set"
)
alltoall = forwarding(
    _alltoall, "tensor splits name process_set", name="alltoall"
)
alltoall_async = forwarding(
    _alltoall_async, "tensor splits name process_set", name="alltoall_async"
)
sparse_allreduce_async = forwarding(
    ours.sparse_allreduce_async, "tensor name op process_set"
)
barrier = forwarding(ours.barrier, "process_set")
join = ignoring("horovod.torch.join", "device")(
    forwarding(
        _join, "device", name="join", device=-1, doc="`hvd_keras.torch.join`."
    )
)

__all__ = [
    *_basics,
    *(name for name in ours.__all__ if name in globals().keys() - set(_basics)),
]
