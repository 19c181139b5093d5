"""Checks and converts the arguments of a collective before it is emitted."""

from __future__ import annotations

import collections
import math
import re
from typing import Any, SupportsFloat

import tensorflow as tf

from hvd_keras._common import dtypes
from hvd_keras._values.members import checked_root_rank
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.ops import _errors
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, ReduceOp

# Dtypes that any collective takes. Kernels refuse those they cannot reduce.
_DTYPES = frozenset(map(tf.as_dtype, (*dtypes.NAMES, *dtypes.FLOAT8)))

# What to write instead of arguments that Horovod has deprecated.
_ADVICE = {
    "average": (
        "Write `op=hvd.Average` for `average=True` and `op=hvd.Sum` for "
        "`average=False`. "
    ),
    "device_dense": "Leave it out, or place the call with `tf.device`. ",
    "device_sparse": "Leave it out, or place the call with `tf.device`. ",
}


def check_name(name: str | None) -> None:
    """Raises unless `name` can pair a call across ranks."""
    if name is None or (isinstance(name, str) and name):
        return
    raise _errors.invalid_argument(
        f"`name` must be None or a non-empty string. Received: name={name!r}."
    )


def default_name(
    kind: str, tensor: tf.Tensor, name: str | None, ignore_name_scope: bool
) -> str | None:
    """Returns the name for a call; None if the kernel is to choose it.

    The kernel chooses the name of its node, which includes the name scopes
    around the call. With `ignore_name_scope`, a nameless call in a graph is
    named after its tensor instead; a second call of the same kind on that
    tensor gets a number.
    """
    if name is not None or not ignore_name_scope or tf.executing_eagerly():
        return name
    name = f"{kind}.{re.sub('[^A-Za-z0-9_.]', '_', tensor.name)}"
    graph: Any = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_hvd_names"):
        graph._hvd_names = collections.Counter()
    graph._hvd_names[name] += 1
    count = graph._hvd_names[name]
    return name if count == 1 else f"{name}#{count}"


def process_set_id(process_set: ProcessSet, name: str | None) -> int:
    """Returns the id of a registered process set.

    The kernel checks whether this rank is a member: a graph may hold, behind a
    condition, collectives of sets that this rank is not in.
    """
    if not isinstance(process_set, ProcessSet):
        raise _errors.invalid_argument(
            f"`process_set` must be a ProcessSet. Received: "
            f"process_set={process_set!r}{of(name)}."
        )
    if process_set.process_set_id is None:
        raise _errors.invalid_argument(
            f"`process_set` must be registered with `init(process_sets=...)` "
            f"or `add_process_set`. Received: process_set={process_set!r}"
            f"{of(name)}."
        )
    return process_set.process_set_id


def refuse_keywords(function: str, keywords: dict[str, Any]) -> None:
    """Raises TypeError if there are keywords, which `function` does not take.

    For those that Horovod has deprecated, the error says what to write.
    """
    for keyword, value in keywords.items():
        advice = _ADVICE.get(keyword, "")
        raise TypeError(
            f"`{function}` takes no argument `{keyword}`. {advice}Received: "
            f"{keyword}={value!r}."
        )


def to_reduce_op(op: ReduceOp | int | None, name: str | None) -> ReduceOp:
    """Returns `op` as a member of `ReduceOp`; `Average` for None."""
    if op is None:
        return Average
    # `True` equals 1, but means `average=True`, which we do not take.
    if isinstance(op, int) and not isinstance(op, bool):
        for known in ReduceOp:
            if known == op:
                return known
    names = ", ".join(known.name for known in ReduceOp)
    raise _errors.invalid_argument(
        f"`op` must be one of {names}. Received: op={op!r}{of(name)}."
    )


def to_factor(value: SupportsFloat, what: str, name: str | None) -> str:
    """Returns a scale factor as the op takes it: the digits of a double."""
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = math.nan
    if not math.isfinite(factor):
        raise _errors.invalid_argument(
            f"`{what}` must be a finite number. Received: "
            f"{what}={value!r}{of(name)}."
        )
    return repr(factor)


def to_root_rank(
    root_rank: Any, process_set: ProcessSet, name: str | None
) -> int:
    """Returns `root_rank` if it is the global rank of a member of the set."""
    try:
        return checked_root_rank(root_rank, process_set, of(name))
    except InvalidArgumentError as error:
        raise _errors.invalid_argument(str(error)) from None


def to_tensor(value: Any, what: str, name: str | None) -> tf.Tensor:
    """Returns a number, an array, a variable or a tensor as a dense tensor."""
    package = type(value).__module__.partition(".")[0]
    if package in ("jax", "jaxlib", "torch"):
        raise _errors.invalid_argument(
            f"`{what}` must be a TensorFlow tensor or a NumPy array. "
            f"Received: {type(value).__name__} of {package}{of(name)}. Use "
            "`hvd_keras.jax` for JAX arrays. `DistributedOptimizer` reduces "
            "the gradients of any backend."
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise _errors.invalid_argument(
            f"`{what}` must be a tensor, or convert to one. Received: "
            f"{type(value).__name__}{of(name)}: {error}"
        ) from error
    if tensor.dtype not in _DTYPES:
        raise _errors.invalid_argument(
            f"`{what}` must be of type bool, (u)int8 to (u)int64, float16, "
            f"bfloat16, float32, float64, float8_e4m3fn or float8_e5m2. "
            f"Received: {tensor.dtype.name}{of(name)}."
        )
    return tensor


def check_members(tensors: Any, name: str | None) -> list[Any]:
    """Returns the members of a group; raises unless it is a non-empty list."""
    is_list = isinstance(tensors, list | tuple)
    if not is_list or not tensors:
        raise _errors.invalid_argument(
            f"`tensors` must be a list of one or more tensors. Received: "
            f"{'an empty list' if is_list else type(tensors).__name__}"
            f"{of(name)}."
        )
    for i, tensor in enumerate(tensors):
        if tensor is None:
            raise _errors.invalid_argument(
                f"`tensors` must not contain None. Received: None at index {i} "
                f"of {len(tensors)}{of(name)}. A variable has no gradient if "
                f"the loss does not depend on it: leave it out on every rank."
            )
    return list(tensors)


def check_has_rows(
    tensor: tf.Tensor, what: str, verb: str, name: str | None
) -> None:
    """Raises if `tensor` is known to be a scalar."""
    if tensor.shape.rank != 0:
        return
    raise _errors.invalid_argument(
        f"`{what}` must have a first dimension to {verb} along. Received: "
        f"a scalar of type {tensor.dtype.name}{of(name)}."
    )


def check_dtype(
    kind: str, tensor: tf.Tensor, op: ReduceOp, name: str | None
) -> None:
    """Raises if `op` has no meaning for the dtype of `tensor`."""
    if op == ReduceOp.Adasum and not tensor.dtype.is_floating:
        raise _errors.invalid_argument(
            f"An {kind} with Adasum must have a floating dtype. Received: "
            f"{tensor.dtype.name}{of(name)}."
        )
    if tensor.dtype != tf.bool or op in (ReduceOp.Min, ReduceOp.Max):
        return
    raise _errors.invalid_argument(
        f"An {kind} of bool must use Min (all) or Max (any). Received: "
        f"op={op.name}{of(name)}."
    )


def check_splits(
    tensor: tf.Tensor,
    splits: tf.Tensor | None,
    process_set: ProcessSet,
    name: str | None,
) -> None:
    """Raises if `splits` cannot divide the rows, as far as both are known."""
    size = process_set.size()
    num_rows = None if tensor.shape.rank is None else tensor.shape[0]
    if splits is None:
        if num_rows is None or size is None or num_rows % size == 0:
            return
        raise _errors.invalid_argument(
            f"Without `splits`, the first dimension of `tensor` must be "
            f"divisible by the number of ranks, {size}. Received: a tensor of "
            f"shape {tensor.shape.as_list()}{of(name)}."
        )
    if splits.dtype not in (tf.int32, tf.int64) or splits.shape.rank not in (
        None,
        1,
    ):
        raise _errors.invalid_argument(
            f"`splits` must be a vector of type int32 or int64. Received: "
            f"shape {splits.shape}, type {splits.dtype.name}{of(name)}."
        )
    length = splits.shape.num_elements()
    if None not in (size, length) and length != size:
        raise _errors.invalid_argument(
            f"`splits` must have an entry for each of the {size} ranks. "
            f"Received: {length} entries{of(name)}."
        )
    values = tf.get_static_value(splits)
    if values is None:
        return
    if (values < 0).any() or num_rows not in (None, values.sum()):
        raise _errors.invalid_argument(
            f"`splits` must hold numbers of rows >= 0, and their sum must be "
            f"the first dimension of `tensor`. Received: splits="
            f"{values.tolist()}, a tensor of shape {tensor.shape}{of(name)}."
        )


def of(name: str | None) -> str:
    """Returns the words that name the tensor in a message; "" without name."""
    return "" if name is None else f" (tensor '{name}')"
