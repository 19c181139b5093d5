"""Makes tensors smaller while they travel between ranks.

With 16 bits a float32 tensor needs half the bytes. The engine adds 16-bit
floats in float32 and rounds the sum once. With `Compression.int8`, `int4` and
`PowerSGD` it is the engine that makes tensors smaller, where they leave a host.
"""

from __future__ import annotations

import dataclasses
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
    `tf.IndexedSlices` in `allreduce` and in `reducescatter`.

    `DistributedOptimizer` and `DistributedGradientTape` send the rows of
    `tf.IndexedSlices`, of 8 numbers or more, as int8 too if the ranks are on
    several hosts and the job is not elastic. A scale is for 128 numbers of one
    row; each number moves once by at most 1/254 of the largest magnitude among
    them. A block with NaN or an infinity becomes NaN.
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


@dataclasses.dataclass(frozen=True)
class PowerSGDCompressor(NoneCompressor):
    """Sends matrices between hosts as products of two thin ones.

    A gradient becomes a matrix M, cut where its rows and columns are fewest: a
    kernel of shape (3, 3, 64, 128) is one of 576 x 128. The hosts find P and Q
    of `rank` columns such that P Q^T is close to M, from the Q of the step
    before (PowerSGD, https://arxiv.org/abs/1905.13727). They send P and Q
    alone: at rank 4 a thirtieth of the bytes of a small CNN, 1/67 of
    ResNet-50's. What P Q^T lacks, a host keeps, as `Compression.int4` keeps its
    residual, and adds it in the next reduction of the same name.

    It is made for SGD, with or without momentum. With Adam and the like it
    costs accuracy, and `DistributedOptimizer` warns. Ranks of one host add up
    exactly; on one host nothing changes. All ranks get equal bits, in each run
    the same: the first Q is drawn from the name. A NaN or an infinity makes the
    whole matrix NaN, and its state begins anew.

    Tensors stay exact whose factors have more than half of their elements, of
    fewer than 4096 elements, of float64, of integers or on GPUs, and those of
    other reductions than `Sum` and `Average`, of `tf.IndexedSlices` and of
    `reducescatter`. Residual and factors live and end as int4's residual does.

    Args:
        rank: Columns of P and Q, from 1 to 31.
        alternate: Whether each step sends P or Q in turns (ACP-SGD,
            https://arxiv.org/abs/2306.08881): half of the bytes, and no wait
            between both.

    Raises:
        ValueError: `rank` is not in [1, 31].
    """

    rank: int = 4
    alternate: bool = False

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= 31:
            raise ValueError(
                "`rank` must be an integer in [1, 31]. Received: "
                f"rank={self.rank!r}."
            )

    @property
    def wire(self) -> str:  # type: ignore[override]
        """The name of its wire format, as errors have it."""
        alternate = ", alternate=True" if self.alternate else ""
        return f"PowerSGD(rank={self.rank}{alternate})"

    @property
    def number(self) -> int:
        """The number of its wire format, as in tf_ops/common/types.h."""
        return (0x60 if self.alternate else 0x40) | self.rank


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    PowerSGD = PowerSGDCompressor


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
                "`Compression.bf16`, `Compression.int8`, `Compression.int4`, "
                "`Compression.PowerSGD()` or derived from `Compressor`. "
                f"Received: compression={compression!r}, which has no `{name}`."
            )
    wire_format_of(compression)
    return compression


def wire_format_of(compression: Any) -> int:
    """Returns the number of a compressor's wire format.

    Raises:
        TypeError: There is no such format.
    """
    if isinstance(compression, PowerSGDCompressor):
        return compression.number
    wire = getattr(compression, "wire", "none")
    for number, known in enumerate(_WIRE_FORMATS):
        if known.wire == wire:
            return number
    raise TypeError(
        "`wire` of a compressor must be 'none', 'int8' or 'int4', and PowerSGD "
        "an instance: `Compression.PowerSGD()`. Received: "
        f"compression={compression!r}, wire={wire!r}."
    )


def keeps_residuals(compression: Any) -> bool:
    """Whether a host keeps, from step to step, what a compressor loses."""
    return wire_format_of(compression) > wire_format_of(Int8Compressor)


def wire_alone(compression: Any) -> type[Compressor] | Compressor:
    """Returns the compressor for tensors that `compression` has compressed."""
    if isinstance(compression, PowerSGDCompressor):
        return compression
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
    if isinstance(compression, PowerSGDCompressor):
        return compression.wire
    return str(getattr(compression, "__name__", type(compression).__name__))


def _narrow(tensor: Tensor, dtype: str) -> tuple[Tensor, str]:
    own = dtype_of(tensor)
    if own in ("float32", "float64"):
        return cast(tensor, dtype), own
    return tensor, own
