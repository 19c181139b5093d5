"""torch: plain calls of the engine, on the memory of the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from hvd_keras import _native
from hvd_keras._backends.interface import Array, Backend
from hvd_keras._backends.options import ReduceOptions
from hvd_keras._common.dtypes import check_dtype
from hvd_keras._common.frameworks import dtype_of
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Min

# dtypes that NumPy lacks: an integer type of the same size, and the dtype of
# ml_dtypes.
_FOREIGN = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


class TorchBackend(Backend):
    """Adapts torch."""

    traces = False

    def to_dense(self, gradient: Any) -> torch.Tensor:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        name: str,
        options: ReduceOptions,
        postscale: float,
        seal: tuple[int, ...] | None = None,
    ) -> list[torch.Tensor]:
        for tensor in tensors:
            check_dtype(dtype_of(tensor), "allreduce", name)
        members = _in_memory_of_their_own(
            [tensor.detach() for tensor in tensors]
        )
        arrays = [_as_array(member) for member in members]
        if seal is not None:
            arrays.append(np.zeros(seal, np.uint8))
        _native.core().allreduce(
            name,
            arrays,
            int(options.op),
            1.0 / options.gradient_predivide_factor,
            postscale,
            options.process_set.process_set_id or 0,
            in_place=True,
        )
        return [
            member.to(tensor.device)
            for member, tensor in zip(members, tensors, strict=True)
        ]

    @torch.compiler.disable
    def reduce_if(
        self,
        condition: Any,
        reduce: Callable[[list[Any]], list[Any]],
        gradients: list[Any],
    ) -> list[Any]:
        return reduce(gradients)

    @torch.compiler.disable
    def mean_over_ranks(
        self, value: Any, name: str, process_set: ProcessSet
    ) -> torch.Tensor:
        mine = np.array(value.item(), np.float32)
        (mean,) = _native.core().allreduce(
            name,
            [mine],
            int(Average),
            1.0,
            1.0,
            process_set.process_set_id or 0,
        )
        return torch.tensor(float(mean), device=value.device)

    @torch.compiler.disable
    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        mine = np.array(int(flag), np.int32)
        (everywhere,) = _native.core().allreduce(
            name, [mine], int(Min), 1.0, 1.0, process_set.process_set_id or 0
        )
        return torch.tensor(bool(everywhere))

    def read(self, variable: Any) -> Array:
        return _as_array(variable.value.detach().cpu().contiguous())

    def assign(self, variable: Any, value: Array) -> None:
        target = variable.value
        with torch.no_grad():
            target.copy_(_as_tensor(value))


def _in_memory_of_their_own(tensors: list[Any]) -> list[torch.Tensor]:
    """Returns contiguous tensors in host memory; copies where necessary.

    No two of them share memory. The inputs may: autograd, for example, gives
    all terms of a sum the same gradient.
    """
    seen: set[int] = set()
    members = []
    for tensor in tensors:
        member = tensor.cpu().contiguous()
        address = member.untyped_storage().data_ptr()
        if address in seen:
            member = member.clone()
        seen.add(address)
        members.append(member)
    return members


def _as_array(tensor: torch.Tensor) -> Array:
    """Returns an array that shares the memory of a tensor on the host."""
    if tensor.dtype in _FOREIGN:
        bits, dtype = _FOREIGN[tensor.dtype]
        array: Array = tensor.view(bits).numpy()
        return array.view(dtype)
    shared: Array = tensor.numpy()
    return shared


def _as_tensor(array: Array) -> torch.Tensor:
    for ours, (bits, dtype) in _FOREIGN.items():
        if array.dtype == dtype:
            values = array.view(str(bits).removeprefix("torch."))
            return torch.from_numpy(values.copy()).view(ours)
    return torch.from_numpy(array.copy())


BACKEND = TorchBackend()
