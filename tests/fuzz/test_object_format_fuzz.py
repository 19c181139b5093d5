"""Whatever comes as an object's message is an object or InvalidArgumentError.

Nor does it take more memory than a multiple of what has come.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
from fuzzing import changed, run_cases

from hvd_keras._values import object_format
from hvd_keras._values.object_format import decode, encode
from hvd_keras.exceptions import InvalidArgumentError

OBJECTS: list[Any] = [
    [None, True, False, 0, -(1 << 70), 0.5, 1j, "caf\u00e9", b"\0\xff"],
    {"a": [1, (2, 3)], (1, "b"): {4, frozenset({5})}, None: {}},
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array([], "U6"),
    np.array([], "S13"),
    np.array(["2020-02-03"], "datetime64[ns]"),
    {"t": np.timedelta64(5, "D"), "b": np.array([True, False])},
    np.arange(3).astype(ml_dtypes.bfloat16),
    [np.float64(0.5), np.str_("x"), np.longdouble(1), np.zeros((0, 7))],
]
# Those of a message, and those that numpy alone would take.
DTYPES = (
    *("int8", "float64", "bfloat16", "bool", "longdouble", "float99", ""),
    *("|O", "|O8", "|V4", "<V4", "object", "(2,)i4", "{'names':['a']}"),
    *("|S4", "|S0", "|S-1", "|S99999999999", "|S4,i4", "|S1,O", "f4,f4"),
    *("<U2", "<U0", "<U99999999", "<Uxyz", "<U1x", "<U1,<U1", "<U2\u0660"),
    *("<M8", "<M8[s]", "<M8[25s]", "<M8[s", "<M8[]", "<M8[", "<M8[s]]"),
    *("<M8[(]", "<M8[1/2s]", "<M8[0s]", "<M8[99999999999s]", "<M9[s]"),
    *("<m8[us]", "<m8[s],i4", "<m8[s]O", "<m8\n", "<m4", "<m8[\u0661s]"),
    *("<m8", "<m8[Y]", "<m8[999999999as]"),
)
TAGS = b"NTFindcsbltSzmagq"


def _length(rng: random.Random, small: int) -> bytes:
    huge = (1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    return struct.pack(
        "<Q", rng.choice(huge) if rng.random() < 0.03 else rng.randint(0, small)
    )


def _array(rng: random.Random) -> bytes:
    text = rng.choice(DTYPES)
    if rng.random() < 0.3:
        prefix = rng.choice(("|S", "<U", "<m", "<M"))
        text = prefix + "".join(rng.choices("812,()[]sOi:-_'{}M/", k=5))
    name = text.encode()
    ndim = rng.choice((0, 1, 1, 2, 3, 32, 33, 255))
    return (
        struct.pack("<Q", len(name))
        + name
        + bytes([ndim])
        + b"".join(_length(rng, 2) for _ in range(ndim))
        + rng.randbytes(rng.choice((0, 1, 4, 8, 16, 32)))
    )


def _value(rng: random.Random, depth: int = 0) -> bytes:
    """A value of the grammar, with lengths and dtypes of all kinds."""
    tag = bytes([rng.choice(TAGS)])
    if tag in b"dc":
        return tag + rng.randbytes(8 if tag == b"d" else 16)
    if tag in b"isb":
        size = rng.randint(0, 9)
        return tag + struct.pack("<Q", size) + rng.randbytes(size)
    if tag in b"ltSzm" and depth < 5:
        size = rng.randint(0, 4)
        count = size * (2 if tag == b"m" else 1)
        values = [_value(rng, depth + 1) for _ in range(count)]
        return tag + struct.pack("<Q", size) + b"".join(values)
    if tag in b"ag":
        return tag + _array(rng)
    return tag if tag in b"NTFq" else tag + _length(rng, 3)


def _check(message: bytes) -> None:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        value = decode(message)
    except InvalidArgumentError:
        pass
    else:
        # A message may spell a value otherwise than `encode` does.
        again = decode(encode(value))
        assert type(again) is type(value)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < 100 * len(message) + (1 << 20)


def test_changed_messages_of_objects() -> None:
    messages = [encode(value) for value in OBJECTS]
    tracemalloc.start()
    run_cases(lambda rng: _check(changed(rng.choice(messages), rng)), 4000)
    tracemalloc.stop()


def test_messages_of_the_grammar() -> None:
    def case(rng: random.Random) -> None:
        _check(object_format.MAGIC + _value(rng))

    tracemalloc.start()
    run_cases(case, 6000)
    tracemalloc.stop()
