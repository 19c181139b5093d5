"""NCCL without hvd_keras, by ctypes; `gpu.py` compares with it."""

from __future__ import annotations

import ctypes
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _core

_IN_PROGRESS = 7
_FLOAT32 = 7
_SUM = 0
_COPY_ON_DEVICE = 3
_PATH = slice(1, -1)  # of "(/path)"


class _Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class _Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.18."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]


def _path(description: str) -> str:
    return description.split(" ", 1)[1][_PATH]


class BareNccl:
    """A communicator of all ranks and a stream.

    Args:
        ordinal: The GPU.
        blocks: Whether calls block until they are launched. Otherwise NCCL
            starts a thread for each.
    """

    def __init__(self, ordinal: int, *, blocks: bool) -> None:
        self._blocks = blocks
        self._cuda = ctypes.CDLL(_path(_core.gpu_cuda_version()))
        self._nccl = ctypes.CDLL(_path(_core.gpu_nccl_version()))
        self._check(self._cuda.cudaSetDevice(ordinal))
        stream = ctypes.c_void_p()
        create = self._cuda.cudaStreamCreateWithPriority
        self._check(create(ctypes.byref(stream), 1, 0))
        self._stream = stream
        self._comm = ctypes.c_void_p()
        self._connect()

    def allreduce(self, source: int, target: int, num_elements: int) -> None:
        """Sums float32 over the ranks, on the stream."""
        self._check(
            self._nccl.ncclAllReduce(
                ctypes.c_void_p(source),
                ctypes.c_void_p(target),
                ctypes.c_size_t(num_elements),
                _FLOAT32,
                _SUM,
                self._comm,
                self._stream,
            )
        )
        self._wait_until_launched()

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copies on the GPU, on the stream."""
        self._check(
            self._cuda.cudaMemcpyAsync(
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(num_bytes),
                _COPY_ON_DEVICE,
                self._stream,
            )
        )

    def synchronize(self) -> None:
        """Waits for the stream."""
        self._check(self._cuda.cudaStreamSynchronize(self._stream))

    def _connect(self) -> None:
        own = _Id()
        if hvd.rank() == 0:
            self._check(self._nccl.ncclGetUniqueId(ctypes.byref(own)))
        row = np.frombuffer(bytes(own), np.uint8)
        name = f"bare_nccl_id.{self._blocks}"
        (shared,) = _core.broadcast(name, [row], 0)
        unset = -(1 << 31)
        config = _Config(
            ctypes.sizeof(_Config), 0xCAFEBEEF, 21800, int(self._blocks),
            *[unset] * 3, None, unset,
        )  # fmt: skip
        self._check(
            self._nccl.ncclCommInitRankConfig(
                ctypes.byref(self._comm),
                hvd.size(),
                _Id.from_buffer_copy(shared.tobytes()),
                hvd.rank(),
                ctypes.byref(config),
            )
        )
        self._wait_until_launched()

    def _wait_until_launched(self) -> None:
        if self._blocks:
            return
        state = ctypes.c_int(_IN_PROGRESS)
        deadline = time.monotonic() + 60
        while state.value == _IN_PROGRESS:
            self._check(
                self._nccl.ncclCommGetAsyncError(
                    self._comm, ctypes.byref(state)
                )
            )
            if time.monotonic() > deadline:
                raise TimeoutError("NCCL took longer than 60 s")
        self._check(state.value)

    @staticmethod
    def _check(result: int) -> None:
        if result not in (0, _IN_PROGRESS):
            raise RuntimeError(f"CUDA or NCCL returned {result}")
