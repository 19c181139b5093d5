"""Makes tensors smaller while they travel between ranks.

With 16 bits a float32 tensor needs half the bytes. The engine adds 16-bit
floats in float32 and rounds the sum once. With `Compression.int8` and `int4` it
is the engine that makes tensors smaller, where they leave a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

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

    Attributes:
        wire: How what `compress` returns travels between hosts: "none" or, as
            for `Compression.int8` and `int4`, "int8" or "int4".
    """

    wire: ClassVar[str] = "none"

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


class Int8Compressor(NoneCompressor):
    """Sends floats between hosts as int8, with a scale for each 128 of them.

    That is about a quarter of the bytes of float32. Inside a host nothing is
    rounded, so on one host results have the bits of `Compression.none`. All
    ranks get equal bits, in each run the same.

    The host that adds up an element gets what the other hosts bring rounded,
    and rounds the result. Each time an element moves by at most 1/254 of the
    largest magnitude of the 128 neighbours in its block, which are all of one
    tensor. So the error of a sum is at most the sum of this for what each other
    host brings and for the result. For an average, what hosts bring counts
    divided by the number of ranks. Magnitudes below 2^-100 (float64: 2^-1000)
    count as 0. NaN and infinities travel; the others of their block become NaN.

    It is off, and everything exact, for tensors of fewer than 4096 elements, of
    integers or on GPUs, for other reductions than `Sum` and `Average`, for
    `tf.IndexedSlices` and in `reducescatter`.
    """

    wire = "int8"


class Int4Compressor(NoneCompressor):
    """Sends floats between hosts as int4, and what that loses in the next step.

    That is 0.14 of the bytes of float32. What holds for `Int8Compressor` holds
    here: it is off for the same reasons, on one host results have the bits of
    `Compression.none`, all ranks get equal bits, and NaN and infinities travel.
    But each time an element moves by at most 1/14 of the largest magnitude of
    the 64 neighbours that share its scale.

    Therefore each host keeps what the packing has lost of a tensor, its
    residual, and adds it in the next reduction of the same name (error
    feedback). It takes the memory of all gradients of a rank once more, in
    float32, in the process of the host that sends. A residual begins with the
    second reduction of a name; with zeros where the tensor's shape, the
    reduction or its factors are new; in a process set of its own anew. It is
    not saved: a training that resumes, or is elastic and begins a new
    generation, loses the rounding of one step, so that its bits differ from
    those of a training that nobody disturbed.

    A `LossScaleOptimizer` skips steps and changes the unit of gradients, so
    `DistributedOptimizer` refuses both together.
    """

    wire = "int4"


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor


# By number, as in tf_ops/common/types.h.
_WIRE_FORMATS = (NoneCompressor, Int8Compressor, Int4Compressor)


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
                "`Compression.bf16`, `Compression.int8`, `Compression.int4` or "
                "derived from `Compressor`. Received: "
                f"compression={compression!r}, which has no `{name}`."
            )
    wire_format_of(compression)
    return compression


def wire_format_of(compression: Any) -> int:
    """Returns the number of a compressor's wire format.

    Raises:
        TypeError: There is no such format.
    """
    wire = getattr(compression, "wire", "none")
    for number, known in enumerate(_WIRE_FORMATS):
        if known.wire == wire:
            return number
    raise TypeError(
        "`wire` of a compressor must be 'none', 'int8' or 'int4'. Received: "
        f"compression={compression!r}, wire={wire!r}."
    )


def wire_alone(compression: Any) -> type[Compressor]:
    """Returns the compressor for tensors that `compression` has compressed."""
    return _WIRE_FORMATS[wire_format_of(compression)]


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
