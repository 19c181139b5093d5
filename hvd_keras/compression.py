"""Makes tensors smaller while they travel between ranks.

With 16 bits a float32 tensor needs half the bytes. The engine adds 16-bit
floats in float32 and rounds the sum once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hvd_keras._common.frameworks import cast, dtype_of

Tensor = Any  # of TensorFlow, JAX or torch


class Compressor:
    """The base of the classes that may be passed as `compression`.

    A subclass overrides both functions. All ranks use the same subclass, and
    the tensor from `compress` has the same dtype and shape on all of them.

    Example:

    >>> class Halve(hvd.Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tf.cast(tensor, tf.float16), tensor.dtype
    ...
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tf.cast(tensor, ctx)
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns the tensor to reduce, and a context for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns the result, given the reduced tensor and the context."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns `tensor`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns `tensor`."""
        return tensor


class FP16Compressor(Compressor):
    """Sends larger floats as float16: 11 significant bits, up to 65504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns `tensor` as float16, and its dtype."""
        return _narrow(tensor, "float16")

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns `tensor` as the dtype `ctx`."""
        return cast(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends larger floats as bfloat16: 8 significant bits, float32's range."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns `tensor` as bfloat16, and its dtype."""
        return _narrow(tensor, "bfloat16")

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns `tensor` as the dtype `ctx`."""
        return cast(tensor, ctx)


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def to_compressor(compression: Any) -> Any:
    """Returns `compression`, or `Compression.none` for None.

    Raises:
        TypeError: `compression` lacks a function of a `Compressor`.
    """
    if compression is None:
        return Compression.none
    for name in ("compress", "decompress"):
        if not callable(getattr(compression, name, None)):
            raise TypeError(
                "`compression` must be `Compression.none`, `Compression.fp16`, "
                "`Compression.bf16` or derived from `Compressor`. Received: "
                f"compression={compression!r}, which has no `{name}`."
            )
    return compression


def reduce_compressed(
    compression: Any,
    tensors: Sequence[Tensor],
    reduce: Callable[[list[Tensor]], Iterable[Tensor]],
) -> list[Tensor]:
    """Returns what `reduce` makes of compressed tensors, decompressed.

    Raises:
        TypeError: See `to_compressor`.
    """
    compression = to_compressor(compression)
    wires = [compression.compress(tensor) for tensor in tensors]
    reduced = reduce([wire for wire, _ in wires])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(reduced, wires, strict=True)
    ]


def name_of(compression: Any) -> str:
    """Returns the name of a compressor class, or of an instance's class."""
    return str(getattr(compression, "__name__", type(compression).__name__))


def _narrow(tensor: Tensor, dtype: str) -> tuple[Tensor, str]:
    own = dtype_of(tensor)
    if own in ("float32", "float64"):
        return cast(tensor, dtype), own
    return tensor, own
