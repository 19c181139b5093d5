"""Memory and streams of a GPU for the tests: of a real one, or of the fake.

`TEST_GPU` says which: `fake` (tests/gpu/fake over host memory; the variable
`HVD_CUDART_LIBRARY` names its library), `torch` or `cupy`. Without it the first
of the last two that finds a GPU is taken.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np

import hvd_keras as hvd
from hvd_keras import _native
from hvd_keras._common import gpus

Array = Any
# float32 values as bfloat16 bits: NumPy has no such type.
BFLOAT16 = "bfloat16"
FIRST_NCCL_THAT_SHARES = 23000


def to_bytes(values: Array, dtype: str) -> Array:
    """The bytes of `values`, a NumPy array of numbers, as `dtype`."""
    if dtype == BFLOAT16:
        bits = np.asarray(values, np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).reshape(-1).view(np.uint8)
    return np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)


def from_bytes(data: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """The values of `data`, which holds `dtype`; bfloat16 becomes float32."""
    if dtype == BFLOAT16:
        bits = data.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    return data.view(dtype).reshape(shape)


def item_bytes(dtype: str) -> int:
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize


class Buffer:
    """Memory on a GPU; `owner` keeps it alive."""

    def __init__(self, address: int, num_bytes: int, owner: Any) -> None:
        self.address = address
        self.num_bytes = num_bytes
        self.owner = owner


class Device(abc.ABC):
    """The GPU of this rank, with one stream that the tests work on."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.stream = 0  # set by subclasses: a cudaStream_t

    @abc.abstractmethod
    def allocate(self, num_bytes: int) -> Buffer: ...

    @abc.abstractmethod
    def write(self, buffer: Buffer, data: Array, delay_us: int = 0) -> None:
        """Writes `data` in stream order, after a kernel of `delay_us`."""

    @abc.abstractmethod
    def copy(self, to: Buffer, source: Buffer) -> None:
        """Copies in stream order."""

    @abc.abstractmethod
    def read(self, buffer: Buffer) -> Array:
        """Waits for the stream, and returns the bytes."""

    @abc.abstractmethod
    def used_bytes(self) -> int:
        """How much memory of the device all processes use."""


class FakeDevice(Device):
    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.library = ctypes.CDLL(os.environ["HVD_CUDART_LIBRARY"])
        self._call("cudaSetDevice", ctypes.c_int(ordinal))
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        self.stream = stream.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        assert result == 0, (name, result)

    def allocate(self, num_bytes: int) -> Buffer:
        address = ctypes.c_void_p()
        size = ctypes.c_size_t(max(1, num_bytes))
        self._call("cudaMalloc", ctypes.byref(address), size)
        assert address.value is not None
        return Buffer(address.value, num_bytes, _Freed(self, address.value))

    def write(self, buffer: Buffer, data: Array, delay_us: int = 0) -> None:
        buffer.owner.written.append(data)  # the stream reads it later
        self._call(
            "fakeCopyLater",
            ctypes.c_void_p(buffer.address),
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
            ctypes.c_int64(delay_us),
            ctypes.c_void_p(self.stream),
        )

    def copy(self, to: Buffer, source: Buffer) -> None:
        self._call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(to.address),
            ctypes.c_void_p(source.address),
            ctypes.c_size_t(source.num_bytes),
            4,
            ctypes.c_void_p(self.stream),
        )

    def read(self, buffer: Buffer) -> Array:
        self.synchronize()
        memory = (ctypes.c_uint8 * buffer.num_bytes).from_address(
            buffer.address
        )
        return np.frombuffer(memory, np.uint8).copy()

    def synchronize(self) -> None:
        self._call("cudaStreamSynchronize", ctypes.c_void_p(self.stream))

    def used_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    @contextlib.contextmanager
    def logged(self) -> Iterator[list[tuple[int, str]]]:
        """Lists which thread calls which function of CUDA and NCCL."""
        entries: list[tuple[int, str]] = []
        self.library.fakeLogStart()
        yield entries
        entries += stop_log(self.library)


def stop_log(fakes: ctypes.CDLL) -> list[tuple[int, str]]:
    """Returns the thread and the function of each call since fakeLogStart."""
    stop = fakes.fakeLogStop
    stop.restype = ctypes.c_size_t
    num_bytes = stop(None, ctypes.c_size_t(0)) + 1
    text = ctypes.create_string_buffer(num_bytes)
    stop(text, ctypes.c_size_t(num_bytes))
    calls = (line.split() for line in text.value.decode().splitlines())
    return [(int(thread), function) for thread, function in calls]


class _Freed:
    """Frees memory of the fake when it is deleted."""

    def __init__(self, device: FakeDevice, address: int) -> None:
        self._device = device
        self._address = address
        self.written: list[Array] = []

    def __del__(self) -> None:
        self._device.library.cudaFree(ctypes.c_void_p(self._address))


class TorchDevice(Device):
    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        import torch

        self._torch = torch
        torch.cuda.set_device(ordinal)
        self._name = f"cuda:{ordinal}"
        self._stream = torch.cuda.Stream(self._name)
        self.stream = self._stream.cuda_stream
        for _ in range(2):  # the first call also loads the kernel
            begin = time.perf_counter()
            torch.cuda._sleep(10_000_000)
            torch.cuda.synchronize(ordinal)
            self._cycles_per_us = 10 / (time.perf_counter() - begin)

    def allocate(self, num_bytes: int) -> Buffer:
        with self._torch.cuda.stream(self._stream):
            tensor = self._torch.empty(
                max(1, num_bytes), dtype=self._torch.uint8, device=self._name
            )
        return Buffer(tensor.data_ptr(), num_bytes, tensor)

    def write(self, buffer: Buffer, data: Array, delay_us: int = 0) -> None:
        source = self._torch.from_numpy(data.copy()).to(self._name)
        self._torch.cuda.current_stream(self._name).synchronize()
        with self._torch.cuda.stream(self._stream):
            if delay_us > 0:
                self._torch.cuda._sleep(int(delay_us * self._cycles_per_us))
            buffer.owner[: len(data)].copy_(source, non_blocking=True)
        source.record_stream(self._stream)

    def copy(self, to: Buffer, source: Buffer) -> None:
        with self._torch.cuda.stream(self._stream):
            to.owner.copy_(source.owner, non_blocking=True)

    def read(self, buffer: Buffer) -> Array:
        self._stream.synchronize()
        return buffer.owner[: buffer.num_bytes].cpu().numpy()

    def used_bytes(self) -> int:
        free, total = self._torch.cuda.mem_get_info(self.ordinal)
        return int(total - free)


_SLEEP = """
extern "C" __global__ void nap(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
}
"""


class CupyDevice(Device):
    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        import cupy

        self._cupy = cupy
        cupy.cuda.Device(ordinal).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.stream = self._stream.ptr
        self._sleep = cupy.RawKernel(_SLEEP, "nap")
        clock_khz = cupy.cuda.Device(ordinal).attributes["ClockRate"]
        self._cycles_per_us = clock_khz / 1000

    def allocate(self, num_bytes: int) -> Buffer:
        self._cupy.cuda.Device(self.ordinal).use()  # any thread
        with self._stream:
            array = self._cupy.empty(max(1, num_bytes), self._cupy.uint8)
        return Buffer(array.data.ptr, num_bytes, array)

    def write(self, buffer: Buffer, data: Array, delay_us: int = 0) -> None:
        source = self._cupy.asarray(data)
        self._cupy.cuda.get_current_stream().synchronize()
        with self._stream:
            if delay_us > 0:
                cycles = int(delay_us * self._cycles_per_us)
                self._sleep((1,), (1,), (np.int64(cycles),))
            buffer.owner[: len(data)] = source

    def copy(self, to: Buffer, source: Buffer) -> None:
        with self._stream:
            to.owner[...] = source.owner

    def read(self, buffer: Buffer) -> Array:
        self._stream.synchronize()
        return self._cupy.asnumpy(buffer.owner[: buffer.num_bytes])

    def used_bytes(self) -> int:
        free, total = self._cupy.cuda.runtime.memGetInfo()
        return int(total - free)


def _num_gpus(kind: str) -> int:
    try:
        if kind == "torch":
            import torch

            return int(torch.cuda.device_count())
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return 0


def prepare_to_share(environ: MutableMapping[str, str]) -> None:
    """Lets several ranks share one GPU; call it before `init()`.

    NCCL 2.30 and later can do it, when asked. For an older one the ranks say
    that they are on different hosts; it then talks through a socket.
    """
    rank = environ.get("HVD_LOCAL_RANK", "0")
    num_ranks = int(environ.get("HVD_LOCAL_SIZE", "1"))
    if environ.get("TEST_GPU") == "fake" or num_ranks < 2:
        return
    # Those of the host: hvdrun may show each rank one of many.
    count = len(gpus.visible({}))
    if not 0 < count < num_ranks:
        return
    for name, value in (
        ("HVD_GPU_SHARE", "1"),
        ("NCCL_MAX_CTAS", "1"),  # all ranks' kernels must fit in at once
        ("NCCL_NVLS_ENABLE", "0"),
    ):
        environ.setdefault(name, value)
    if hvd.nccl_built() < FIRST_NCCL_THAT_SHARES:
        environ.setdefault("NCCL_HOSTID", f"rank{rank}")
        environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def open_device(local_rank: int) -> Device | None:
    """The GPU of this rank; None where there is none.

    Ranks without a GPU of their own share the first one.
    """
    kind = os.environ.get("TEST_GPU", "")
    if kind == "fake":
        count = _native.core().gpu_count()
        return FakeDevice(local_rank if local_rank < count else 0)
    makers: dict[str, type[Device]] = {"torch": TorchDevice, "cupy": CupyDevice}
    for name in [kind] if kind else list(makers):
        count = _num_gpus(name)
        if count > 0:
            ordinal = local_rank if local_rank < count else 0
            return makers[name](ordinal)
    return None
