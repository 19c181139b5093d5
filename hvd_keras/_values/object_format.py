"""The bytes of a Python object on the wire: plain values, never code.

A message is `HVDO`, one byte for the version, then one value. A value is a
one-byte tag, then what the table says. Lengths are 8 bytes, little-endian:

    N T F          None, True, False
    i n            length, two's complement bytes
    d              8 bytes, IEEE 754 (nan payloads and -0.0 survive)
    c              16 bytes: real, imaginary
    s b            length, bytes (s: UTF-8, lone surrogates kept)
    l t S z        count, values: list, tuple, set, frozenset
    m              count, pairs of values: dict, in its order
    a g            dtype (s), number of dimensions (1 byte), dimensions, bytes:
                   numpy array, numpy scalar (no dimensions)

`decode` trusts nothing. Before it allocates memory, it compares each length
with the rest of the message. It limits nesting, and raises InvalidArgumentError
for everything that is wrong.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import ml_dtypes
import numpy as np

from hvd_keras.exceptions import InvalidArgumentError

MAGIC = b"HVDO\x01"
MAX_DEPTH = 100
MAX_BYTES = 1 << 31
_MAX_EMPTY_ITEM_BYTES = 1 << 20  # of an array without items

_LENGTH = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_SEQUENCES: dict[type, bytes] = {
    list: b"l",
    tuple: b"t",
    set: b"S",
    frozenset: b"z",
}
_SEQUENCE_OF_TAG = {tag: kind for kind, tag in _SEQUENCES.items()}

# By name, so that a message cannot ask for any other dtype.
_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 "
        "float32 float64 longdouble complex64 complex128 clongdouble"
    ).split()
}
_DTYPES.update(
    (name, np.dtype(getattr(ml_dtypes, name)))
    for name in (
        "bfloat16 float8_e4m3fn float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2 "
        "float8_e5m2fnuz float8_e3m4 float8_e4m3 float8_e8m0fnu float4_e2m1fn "
        "float6_e2m3fn float6_e3m2fn int2 int4 uint2 uint4"
    ).split()
    if hasattr(ml_dtypes, name)
)
# Of bytes, strings and times. numpy takes much more for a dtype: lists of
# them, objects, Python's literals.
_TEXT_OR_TIME = re.compile(
    r"(\|S|<U)[0-9]{1,10}|"
    r"<[mM]8(\[[0-9]{0,10}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
# What numpy's scalars raise as members of a set or keys of a dict, which hashes
# and compares them: times without a unit, times whose units are too far apart.
_CANNOT_BE_HASHED = (TypeError, ValueError, ArithmeticError)
_NAME_OF_DTYPE = {dtype: name for name, dtype in _DTYPES.items()}


def encode(value: Any) -> bytes:
    """Returns `value` as a message.

    TensorFlow tensors and variables, Keras variables and everything else with
    a `numpy()` method become numpy arrays.

    Raises:
        TypeError: A type cannot be sent. The message names it and its place in
            `value`, such as `value['history'][3]`.
        ValueError: `value` is nested too deeply or too large.
    """
    parts = [MAGIC]
    _encode(value, "value", 0, parts)
    message = b"".join(parts)
    if len(message) > MAX_BYTES:
        raise ValueError(
            f"An object must take at most {MAX_BYTES} bytes on the wire. "
            f"Received: {len(message)} bytes."
        )
    return message


def decode(message: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Returns the value in `message`.

    Raises:
        InvalidArgumentError: `message` does not come from `encode`.
    """
    if len(message) > max_bytes:
        raise InvalidArgumentError(
            f"An object must take at most {max_bytes} bytes on the wire. "
            f"Received: {len(message)} bytes."
        )
    reader = _Reader(message)
    if reader.take(len(MAGIC)) != MAGIC:
        raise reader.error("it does not begin with the magic and version 1")
    value = reader.value(0)
    if reader.left:
        raise reader.error("bytes follow the value")
    return value


def _encode(value: Any, path: str, depth: int, parts: list[bytes]) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(
            f"An object must be nested at most {MAX_DEPTH} deep. Received: "
            f"a deeper one at {path[:200]}."
        )
    kind = type(value)
    if value is None:
        parts.append(b"N")
    elif kind is bool:
        parts.append(b"T" if value else b"F")
    elif kind is int:
        num_bytes = value.bit_length() // 8 + 1
        data = value.to_bytes(num_bytes, "little", signed=True)
        parts += [b"i", _LENGTH.pack(num_bytes), data]
    elif kind is float:
        parts += [b"d", _DOUBLE.pack(value)]
    elif kind is complex:
        parts += [b"c", _COMPLEX.pack(value.real, value.imag)]
    elif kind is str:
        data = value.encode("utf-8", "surrogatepass")
        parts += [b"s", _LENGTH.pack(len(data)), data]
    elif kind is bytes:
        parts += [b"b", _LENGTH.pack(len(value)), value]
    elif kind in _SEQUENCES:
        parts += [_SEQUENCES[kind], _LENGTH.pack(len(value))]
        for index, item in enumerate(value):
            _encode(item, f"{path}[{index}]", depth + 1, parts)
    elif kind is dict:
        parts += [b"m", _LENGTH.pack(len(value))]
        for key, item in value.items():
            _encode(key, f"{path}.keys()[{key!r:.40}]", depth + 1, parts)
            _encode(item, f"{path}[{key!r:.40}]", depth + 1, parts)
    else:
        _encode_array(_as_numpy(value, path), path, parts)


def _as_numpy(value: Any, path: str) -> np.ndarray[Any, Any] | np.generic:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return value
    if callable(getattr(value, "numpy", None)):
        try:
            array = value.numpy()
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            raise TypeError(
                f"A tensor must have a value to be sent. Received: {path}, a "
                f"{_type_name(value)} without one (symbolic?)."
            ) from error
        if isinstance(array, np.ndarray | np.generic):
            return array
        if isinstance(array, bytes | bool | int | float | complex):
            return np.asarray(array)[()]
    raise TypeError(
        "An object must be built of None, bool, int, float, complex, str, "
        "bytes, list, tuple, dict, set, frozenset, numpy arrays and scalars "
        f"and TensorFlow tensors. Received: {path} of type "
        f"{_type_name(value)}."
    )


def _encode_array(
    array: np.ndarray[Any, Any] | np.generic, path: str, parts: list[bytes]
) -> None:
    dtype = array.dtype.newbyteorder("<")
    name = _NAME_OF_DTYPE.get(array.dtype.newbyteorder("="))
    if name is None and array.dtype.kind in "SUmM":
        name = dtype.str
    if name is None:
        raise TypeError(
            "A numpy array must hold numbers, booleans, strings or times. "
            f"Received: {path} of dtype {array.dtype}."
        )
    is_scalar = isinstance(array, np.generic)
    if array.dtype.kind in "biufcSUmM":
        array = np.asarray(array, dtype)
    if array.dtype.kind in "SU":
        name = array.dtype.str  # an array of "" has room, the scalar none
    data = name.encode()
    parts += [b"g" if is_scalar else b"a", _LENGTH.pack(len(data)), data]
    parts.append(bytes([array.ndim]))
    parts += [_LENGTH.pack(length) for length in array.shape]
    parts.append(array.tobytes())


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _largest(data: bytes, dtype: str) -> int:
    return int(np.frombuffer(data, dtype).max(initial=0))


class _Reader:
    """Takes values from the front of a message."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._message) - self._at

    def error(self, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            "An object's message must be well formed. Received: "
            f"{len(self._message)} bytes in which, at byte {self._at}, "
            f"{problem}."
        )

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self.left:
            raise self.error(f"{num_bytes} bytes are wanted, {self.left} left")
        self._at += num_bytes
        return self._message[self._at - num_bytes : self._at]

    def count(self, least_bytes: int = 1) -> int:
        """Reads a number of things that take at least `least_bytes` each."""
        (count,) = _LENGTH.unpack(self.take(_LENGTH.size))
        if count * least_bytes > self.left:
            raise self.error(f"a length of {count} goes beyond the end")
        return int(count)

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested more than {MAX_DEPTH} deep")
        tag = self.take(1)
        if tag == b"N":
            return None
        if tag in b"TF":
            return tag == b"T"
        if tag == b"i":
            return int.from_bytes(
                self.take(self.count()), "little", signed=True
            )
        if tag == b"d":
            return _DOUBLE.unpack(self.take(_DOUBLE.size))[0]
        if tag == b"c":
            return complex(*_COMPLEX.unpack(self.take(_COMPLEX.size)))
        if tag == b"s":
            return self.text()
        if tag == b"b":
            return self.take(self.count())
        if tag in _SEQUENCE_OF_TAG:
            return self.sequence(_SEQUENCE_OF_TAG[tag], depth)
        if tag == b"m":
            return self.mapping(depth)
        if tag == b"a":
            return self.array()
        if tag == b"g":
            array = self.array()
            if array.ndim:
                raise self.error("a scalar has dimensions")
            return array[()]
        raise self.error(f"the tag {tag!r} is unknown")

    def text(self) -> str:
        data = self.take(self.count())
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.error("a string is not UTF-8") from error

    def sequence(self, kind: type, depth: int) -> Any:
        values = [self.value(depth + 1) for _ in range(self.count())]
        try:
            result = kind(values)
        except _CANNOT_BE_HASHED as error:
            raise self.error("a set holds what cannot be hashed") from error
        if len(result) != len(values):
            raise self.error("a set holds a value twice")
        return result

    def mapping(self, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        count = self.count(2)
        for _ in range(count):
            key, value = self.value(depth + 1), self.value(depth + 1)
            try:
                result[key] = value
            except _CANNOT_BE_HASHED as error:
                raise self.error("a key cannot be hashed") from error
        if len(result) != count:
            raise self.error("a dict holds a key twice")
        return result

    def array(self) -> np.ndarray[Any, Any]:
        dtype = self.dtype()
        ndim = self.take(1)[0]
        if ndim > 32:
            raise self.error(f"an array has {ndim} dimensions")
        shape = [_LENGTH.unpack(self.take(8))[0] for _ in range(ndim)]
        if any(length > self.left for length in shape) and 0 not in shape:
            raise self.error(f"an array of shape {shape} goes beyond the end")
        data = self.take(math.prod(shape) * dtype.itemsize)
        try:
            # A copy, because the caller may write to what it gets.
            array = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
            array = array.reshape(shape).copy()
        except (ValueError, OverflowError) as error:
            raise self.error(f"an array has the shape {shape}") from error
        if dtype.kind == "U" and _largest(data, "<u4") > 0x10FFFF:
            raise self.error("an array of strings is not Unicode")
        if dtype.kind == "b" and _largest(data, "u1") > 1:
            raise self.error("an array of booleans holds other values")
        return array

    def dtype(self) -> np.dtype[Any]:
        name = self.text()
        if name in _DTYPES:
            return _DTYPES[name]
        problem = f"the dtype {name[:40]!r} is unknown"
        if not _TEXT_OR_TIME.fullmatch(name):
            raise self.error(problem)
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(problem) from error
        # An empty array has no items, but numpy may allocate one.
        if dtype.itemsize > max(self.left, _MAX_EMPTY_ITEM_BYTES):
            raise self.error(problem)
        return dtype
