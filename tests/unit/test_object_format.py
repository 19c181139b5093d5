"""The wire format of objects: faithful, versioned, and safe to parse."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hvd_keras._values import object_format
from hvd_keras._values.object_format import decode, encode
from hvd_keras.exceptions import InvalidArgumentError

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    1 << 62,
    (1 << 2000) + 1,
    -(1 << 2000),
    0.0,
    0.1,
    math.inf,
    -math.inf,
    1 - 2j,
    "",
    "caf\u00e9 \U0001f600 \ud800",
    b"",
    b"\x00\xff",
    [],
    [1, [2, [3]]],
    (),
    (1, ("a", b"a")),
    {},
    {None: None},
    {None: 1, True: 2, 2: 3, 2.5: 4, "k": 5, b"k": 6, (1, (2,)): 7, 1j: 8},
    {"z": 1, "a": {"nested": [{"deep": (None,)}]}},
    {frozenset({1, 2}): 3},
    set(),
    {1, "a", (2, 3)},
    frozenset({1, frozenset({2})}),
]
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 "
    "float64 longdouble complex64 complex128 S3 U2 datetime64[ns] "
    "timedelta64[D]"
).split()


# Not by `repr`: the order of a set differs by process, and ids must not.
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_survive(value: Any) -> None:
    result = decode(encode(value))
    assert type(result) is type(value)
    assert result == value


def test_a_dict_keeps_its_order() -> None:
    assert list(decode(encode({3: 0, 1: 0, 2: 0}))) == [3, 1, 2]


def test_nan_and_minus_zero_are_exact() -> None:
    (nan,) = struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\xff")
    assert struct.pack("<d", decode(encode(nan))) == struct.pack("<d", nan)
    assert math.copysign(1.0, decode(encode(-0.0))) == -1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3)])
def test_arrays_survive(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    result = decode(encode(array))
    assert result.dtype == array.dtype
    assert result.shape == array.shape
    np.testing.assert_array_equal(result, array)
    assert result.flags.writeable


def test_arrays_at_the_limits_survive() -> None:
    for array in (np.ones([1] * 32), np.array("\U0010ffff")):
        np.testing.assert_array_equal(decode(encode(array)), array)


@pytest.mark.parametrize("dtype", ["<U6", "|S13"])
def test_empty_arrays_of_strings_survive(dtype: str) -> None:
    result = decode(encode(np.array([], dtype)))
    assert result.dtype == dtype
    assert result.shape == (0,)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
)
def test_arrays_of_small_dtypes_survive(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    result = decode(encode(array))
    assert result.dtype == array.dtype
    assert result.tobytes() == array.tobytes()
    assert result.shape == (2, 3)
    scalar = decode(encode(array[1, 2]))
    assert type(scalar) is type(array[1, 2])
    assert scalar == array[1, 2]


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.float64(0.1),
        np.int64(-5),
        np.bool_(True),
        np.str_("text"),
        np.bytes_(b"bytes"),
        np.str_(""),
        np.bytes_(b""),
        np.datetime64("2020-02-03"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_numpy_scalars_keep_their_type(value: np.generic) -> None:
    result = decode(encode(value))
    assert type(result) is type(value)
    assert result == value


def test_strided_and_big_endian_arrays_survive() -> None:
    array = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::3].T
    np.testing.assert_array_equal(decode(encode(array)), array)


def test_tensors_and_variables_become_arrays() -> None:
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    for value in (
        tf.constant([1.0, 2.0]),
        tf.Variable([1.0, 2.0]),
        keras.Variable([1.0, 2.0]),
    ):
        np.testing.assert_array_equal(decode(encode(value)), [1.0, 2.0])
    assert decode(encode(tf.constant("text"))) == b"text"


class SubclassOfDict(dict):
    pass


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "value of type builtins.object"),
        ([1, {"a": (0, len)}], r"value\[1\]\['a'\]\[1\] of type"),
        ({"a": {open: 1}}, r"value\['a'\].keys\(\)\["),
        (SubclassOfDict(), "SubclassOfDict"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, dtype=[("a", "i4")]), "dtype"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (bytearray(b"x"), "bytearray"),
    ],
    ids=lambda v: str(v)[:15],
)
def test_other_types_are_refused_with_their_place(
    value: Any, place: str
) -> None:
    with pytest.raises(TypeError, match=place):
        encode(value)


def test_symbolic_tensors_are_refused() -> None:
    keras = pytest.importorskip("keras")
    with pytest.raises(TypeError, match="KerasTensor"):
        encode({"x": keras.Input((2,))})


def test_nesting_is_limited_in_both_directions() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="100 deep"):
        encode(loop)
    message = object_format.MAGIC + b"l\x01\0\0\0\0\0\0\0" * 5000 + b"N"
    with pytest.raises(InvalidArgumentError, match="nested"):
        decode(message)


def length(number: int) -> bytes:
    return struct.pack("<Q", number)


DICT, LIST, TUPLE = (tag + length(1) for tag in (b"m", b"l", b"t"))


@pytest.mark.parametrize(
    "body",
    [
        LIST * 100 + b"N",
        (DICT + b"N") * 100 + b"N",
        DICT + TUPLE * 99 + b"N" + b"N",
    ],
    ids=["lists", "values", "keys"],
)
def test_values_may_be_nested_100_deep(body: bytes) -> None:
    message = object_format.MAGIC + body
    assert encode(decode(message)) == message
    with pytest.raises(InvalidArgumentError, match="nested"):
        decode(object_format.MAGIC + LIST + body)


def test_size_is_limited() -> None:
    message = encode(b"x" * 100)
    assert decode(message, max_bytes=len(message)) == b"x" * 100
    with pytest.raises(InvalidArgumentError, match="at most 50 bytes"):
        decode(message, max_bytes=50)


def test_another_version_is_refused() -> None:
    message = bytearray(encode(1))
    message[4] += 1
    with pytest.raises(InvalidArgumentError, match="version"):
        decode(bytes(message))


def scalar_of(dtype: bytes, data: bytes) -> bytes:
    return b"g" + array_of(dtype, data=data)[1:]


def array_of(dtype: bytes, *shape: int, data: bytes = b"") -> bytes:
    dimensions = b"".join(length(n) for n in shape)
    header = b"a" + length(len(dtype)) + dtype + bytes([len(shape)])
    return header + dimensions + data


BAD = {
    "empty": b"",
    "unknown tag": b"?",
    "bytes after the value": b"NN",
    "string beyond the end": b"s" + length(1 << 60) + b"x",
    "list beyond the end": b"l" + length(1 << 60),
    "dict beyond the end": b"m" + length(2) + b"NN",
    "int beyond the end": b"i" + length(9) + b"x",
    "not UTF-8": b"s" + length(1) + b"\xff",
    "a list as key": b"m" + length(1) + b"l" + length(0) + b"N",
    "a key twice": b"m" + length(2) + b"NNNN",
    "a set of lists": b"S" + length(1) + b"l" + length(0),
    "a set with a value twice": b"S" + length(2) + b"NN",
    "array beyond the end": array_of(b"int64", 1 << 40),
    "array with overflowing shape": array_of(b"int8", 1 << 32, 1 << 32),
    "empty array of absurd shape": array_of(b"int8", 0, 1 << 63),
    "array of objects": array_of(b"object", 1, data=b"12345678"),
    "array of pointers": array_of(b"|O8", 1, data=b"12345678"),
    "array of absurd strings": array_of(b"|S2000000000", 0),
    "a set of times without a unit": b"S"
    + length(1)
    + scalar_of(b"<m8", b"12345678"),
    "a key of times without a unit": b"m"
    + length(1)
    + scalar_of(b"<m8", b"12345678")
    + b"N",
    "dtype of an open bracket": b"g" + length(5) + b"|S1,(",
    "array of strings without bytes": array_of(b"<U0", 99, 99, data=b"x" * 99),
    "array of records": array_of(b"|S4,i4", 1, data=b"12345678"),
    "empty array of records of objects": array_of(b"|S1,O", 0),
    "dtype that is no syntax": array_of(b"<m,8)O2", 0),
    "dtype and a newline": array_of(b"<m8[s]\n", 1, data=b"12345678"),
    "dtype with digits of another script": array_of("<U\u0661".encode(), 0),
    "array that is not Unicode": array_of(b"<U1", 1, data=b"\0\0\x11\0"),
    "array that is not boolean": array_of(b"bool", 1, data=b"\x02"),
    "scalar with dimensions": b"g" + array_of(b"int8", 1, data=b"1")[1:],
    "array of 33 dimensions": array_of(b"int8", *([1] * 33), data=b"1"),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_malformed_messages_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        decode(object_format.MAGIC + body)


def test_truncated_messages_are_refused() -> None:
    message = encode([VALUES, np.arange(5), np.float32(1.0)])
    for end in range(len(message)):
        with pytest.raises(InvalidArgumentError):
            decode(message[:end])


def test_parser_survives_fuzzing() -> None:
    generator = random.Random(0)
    seeds = [encode(value) for value in VALUES]
    seeds += [encode(np.zeros((2, 3), dtype)) for dtype in DTYPES]
    seeds.append(encode([VALUES, np.arange(4)]))
    for _ in range(20_000):
        message = bytearray(generator.choice(seeds))
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(5, len(message))
            action = generator.randrange(3)
            if action == 0:
                message[at] = generator.randrange(256)
            elif action == 1:
                del message[at:]
                break
            else:
                message[at:at] = generator.randbytes(generator.randint(1, 9))
        try:
            value = decode(bytes(message))
        except InvalidArgumentError:
            continue
        repr(value)  # a whole value
