"""The dtypes that collectives take."""

from __future__ import annotations

from hvd_keras.exceptions import InvalidArgumentError

# kTypePairs in tf_ops/kernels/tf_convert.cc.
NAMES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
# CPUs move these dtypes but do not reduce them.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_MOVES = ("broadcast", "allgather", "alltoall")


def check_dtype(dtype: str, kind: str, name: str) -> None:
    """Checks that a collective takes a dtype, given by its NumPy name.

    Raises:
        InvalidArgumentError: It does not.
    """
    known = [*NAMES, *(FLOAT8 if kind in _MOVES else ())]
    if dtype in known:
        return
    raise InvalidArgumentError(
        f"{kind} '{name}': a tensor must have one of the dtypes "
        f"{', '.join(known)}. "
        f"Received: {dtype}"
    )
