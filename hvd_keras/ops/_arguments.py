"""What Python checks and converts before a collective is emitted."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _errors
from hvd_keras.ops.reduce_op import ReduceOp

# HVD_TENSOR_TYPES in op_registration.h.
_DTYPES = frozenset(
    {
        tf.bool,
        tf.uint8,
        tf.int8,
        tf.uint16,
        tf.int16,
        tf.uint32,
        tf.int32,
        tf.uint64,
        tf.int64,
        tf.float16,
        tf.bfloat16,
        tf.float32,
        tf.float64,
    }
)


def check_name(name: str | None) -> None:
    """Raises unless `name` can pair a call across ranks."""
    if name is None or (isinstance(name, str) and name):
        return
    raise _errors.invalid_argument(
        f"`name` must be None or a string that is not empty. Received: "
        f"name={name!r}."
    )


def to_reduce_op(op: ReduceOp | int, name: str | None) -> ReduceOp:
    """Returns the member of `ReduceOp` that `op` is."""
    # `True` is 1, but means `average=True` of an interface that we do not have.
    if isinstance(op, int) and not isinstance(op, bool):
        for known in ReduceOp:
            if known == op:
                return known
    names = ", ".join(known.name for known in ReduceOp)
    raise _errors.invalid_argument(
        f"`op` must be one of {names}. Received: op={op!r}{_of(name)}."
    )


def to_factor(value: SupportsFloat, what: str, name: str | None) -> str:
    """Returns a scale factor as the op's attribute: the digits of a double."""
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = math.nan
    if not math.isfinite(factor):
        raise _errors.invalid_argument(
            f"`{what}` must be a finite number. Received: "
            f"{what}={value!r}{_of(name)}."
        )
    return repr(factor)


def check_root_rank(root_rank: int, name: str | None) -> None:
    """Raises unless `root_rank` is a rank of the job."""
    is_int = isinstance(root_rank, int) and not isinstance(root_rank, bool)
    core = _native.core()
    if not core.is_initialized():
        size, where = None, ""
    else:
        size, where = core.size(), f" (rank {core.rank()})"
    if is_int and root_rank >= 0 and (size is None or root_rank < size):
        return
    expected = "a rank" if size is None else f"an integer in [0, {size})"
    raise _errors.invalid_argument(
        f"`root_rank` must be {expected}. Received: "
        f"root_rank={root_rank!r}{where}{_of(name)}."
    )


def to_tensor(value: Any, what: str, name: str | None) -> tf.Tensor:
    """Returns a number, an array, a variable or a tensor as a dense tensor."""
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise _errors.invalid_argument(
            f"`{what}` must be a tensor or convert to one. Received: "
            f"{type(value).__name__}{_of(name)}: {error}"
        ) from error
    if tensor.dtype not in _DTYPES:
        raise _errors.invalid_argument(
            f"`{what}` must be of type bool, (u)int8 to (u)int64, float16, "
            f"bfloat16, float32 or float64. Received: "
            f"{tensor.dtype.name}{_of(name)}."
        )
    return tensor


def check_dtype(tensor: tf.Tensor, op: ReduceOp, name: str | None) -> None:
    """Raises where `op` has no meaning for the type of `tensor`."""
    if tensor.dtype != tf.bool or op in (ReduceOp.Min, ReduceOp.Max):
        return
    raise _errors.invalid_argument(
        f"An allreduce of bool must use Min (all) or Max (any). Received: "
        f"op={op.name}{_of(name)}."
    )


def _of(name: str | None) -> str:
    return "" if name is None else f" (tensor '{name}')"
