"""Smaller forms that tensors take on their way between ranks.

A form of 16 bits halves the bytes. Sums are unharmed by it: the engine adds
16-bit floats in float32 and rounds once.
"""

from __future__ import annotations

from typing import Any

from hvd_keras._common.frameworks import cast, dtype_of

Tensor = Any  # of TensorFlow, JAX or torch


class Compressor:
    """The base of the classes that may be passed as `compression`.

    A subclass overrides both functions. All ranks use the same one, and what
    `compress` returns has the same dtype and shape on all of them.

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
        """Returns the tensor that is reduced, and a note for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns the result that a reduced tensor stands for."""
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
    """Sends floats of more than 16 bits as float16: 11 bits, up to 65504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns `tensor` as float16, and its dtype."""
        return _narrow(tensor, "float16")

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns `tensor` as the dtype `ctx`."""
        return cast(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends floats of more than 16 bits as bfloat16: 8 bits, any size."""

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
    """Returns what compresses; of None, `Compression.none`.

    Raises:
        TypeError: `compression` has not the functions of a `Compressor`.
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


def name_of(compression: Any) -> str:
    """The name of a class of compressors, or that of an instance's."""
    return str(getattr(compression, "__name__", type(compression).__name__))


def _narrow(tensor: Tensor, dtype: str) -> tuple[Tensor, str]:
    own = dtype_of(tensor)
    if own in ("float32", "float64"):
        return cast(tensor, dtype), own
    return tensor, own
