"""Collectives on a test's GPU that take and return NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from devices import Buffer, Device, from_bytes, item_bytes, to_bytes

import hvd_keras as hvd
from hvd_keras import _native

Array = Any


class Call:
    """A collective that has begun."""

    def __init__(
        self,
        device: Device,
        kind: str,
        name: str,
        arrays: list[Array],
        dtype: str = "float32",
        *,
        delay_us: int = 0,
        in_place: bool = False,
        ordinal: int | None = None,
        **options: Any,
    ) -> None:
        self._device = device
        self._dtype = dtype
        inputs = [self._input(array, delay_us) for array in arrays]
        self.outputs: list[Buffer | None] = [None] * len(arrays)
        self._shapes = [array.shape for array in arrays]
        self._inputs = inputs
        allocates = kind in ("allgather", "alltoall", "reducescatter")
        if allocates:
            options["allocate"] = self._allocate
        else:
            self.outputs = [
                source if in_place else device.allocate(source.num_bytes)
                for source in inputs
            ]
        tensors = [
            (
                source.address,
                0 if output is None else output.address,
                dtype,
                list(array.shape),
            )
            for source, output, array in zip(
                inputs, self.outputs, arrays, strict=True
            )
        ]
        place = device.ordinal if ordinal is None else ordinal
        self.call = _native.core().gpu_submit(
            kind, name, tensors, place, device.stream, **options
        )

    def _input(self, array: Array, delay_us: int) -> Buffer:
        data = to_bytes(array, self._dtype)
        buffer = self._device.allocate(data.nbytes)
        if data.nbytes:
            self._device.write(buffer, data, delay_us)
        return buffer

    def _allocate(self, index: int, shape: list[int]) -> int:
        size = int(np.prod(shape)) * item_bytes(self._dtype)
        buffer = self._device.allocate(size)
        self.outputs[index] = buffer
        self._shapes[index] = tuple(shape)
        return buffer.address

    def wait(self) -> list[Array]:
        """Waits for the call; returns its outputs, or raises."""
        self.call.wait()
        return [
            from_bytes(self._device.read(output), self._dtype, tuple(shape))
            for output, shape in zip(self.outputs, self._shapes, strict=True)
            if output is not None
        ]


def run(device: Device, kind: str, name: str, *args: Any, **options: Any):
    return Call(device, kind, name, *args, **options).wait()


def pattern(shape: tuple[int, ...], rank: int, dtype: str) -> Array:
    """Small whole numbers that differ by rank and place."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return ((np.arange(count) + rank) % 3 == 0).reshape(shape)
    values = (np.arange(count) + rank) % 3 + 1
    return values.astype(np.float64).reshape(shape)


def of_all_ranks(shape: tuple[int, ...], dtype: str) -> list[Array]:
    return [pattern(shape, rank, dtype) for rank in range(hvd.size())]
