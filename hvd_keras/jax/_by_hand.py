"""Tells of ranks that average gradients by hand, and began with other values.

It compares nothing while ranks train: they may trace at other times. Each rank
tells hvdrun some of the numbers that its first gradients were computed for.

A private name of JAX, `cache_miss` with its `args` and `kwargs`, tells for
which values a program is traced. Where JAX has another, nothing is told of
programs.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import types
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from hvd_keras import _native
from hvd_keras._common import remarks, training_signs
from hvd_keras._job import last_words, state
from hvd_keras._values import end_weights
from hvd_keras.jax._tracers import behind, made_by, operands

_MOST = 100  # calls that compute gradients, of which none was reduced


class _Start(NamedTuple):
    """What one call computes gradients for, and the gradients.

    Attributes:
        numbers: Of the first values.
        shapes: Of the values, as a text.
        num_bytes: The size of the values.
        num_moved: The bytes that were broadcast before.
    """

    numbers: list[float]
    shapes: str
    num_bytes: int
    num_moved: int
    values: list[weakref.ref[Any]]
    gradients: list[weakref.ref[Any]]


_starts: list[_Start] = []
_num_seen = 0
_reduced: _Start | None = None


def note_reduced(arrays: Iterable[Any]) -> None:
    """Notes arrays that a call of the user reduces, maybe gradients."""
    global _reduced
    if not _starts:
        return
    for array in arrays:
        for start in _starts:
            if _is_made_of(array, _ids(start.gradients), _ids(start.values)):
                _reduced = start
                _starts.clear()
                return


def _note(values: Any, result: Any) -> None:
    """Notes the values that gradients are computed for."""
    global _num_seen
    if _reduced is not None or _num_seen == _MOST or state.job() is None:
        return
    _num_seen += 1
    with contextlib.suppress(Exception):  # such as keys, or a private name
        _starts.append(_start_of(values, result))


def _start_of(values: Any, result: Any) -> _Start:
    leaves = jax.tree.leaves(values)
    forms = list(map(_form, leaves))
    known = list(_known(leaves, forms))
    return _Start(
        end_weights.some_of(known),
        str(forms),
        sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms),
        _native.core().num_broadcast_bytes(),
        list(map(weakref.ref, leaves)),
        [
            weakref.ref(leaf)
            for leaf in jax.tree.leaves(result)
            if _form(leaf) in forms
        ],
    )


def _form(leaf: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape), leaf.dtype


def _known(leaves: list[Any], forms: list[Any]) -> Iterator[Any]:
    """Yields arrays with values: these, or those that stand for them.

    The arguments of a program may have arrays of these shapes several times,
    one after the other: the parameters, and what an optimizer has for them. One
    array alone may be the data.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        yield from leaves
        return
    given = [
        leaf for leaf in jax.tree.leaves(_arguments()) if hasattr(leaf, "dtype")
    ]
    theirs = list(map(_form, given))
    places = [
        i
        for i in range(len(given) - len(forms) + 1)
        if theirs[i : i + len(forms)] == forms
    ]
    if len(forms) > 1 or len(places) == 1:
        for i in places:
            yield from given[i : i + len(forms)]


def _arguments() -> Any:
    """Returns what the outermost program is called with, while it is traced."""
    found: Any = None
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "cache_miss":
            found = frame.f_locals.get("args"), frame.f_locals.get("kwargs")
        frame = frame.f_back
    return found


def _ids(refs: list[weakref.ref[Any]]) -> set[int]:
    alive = [leaf for ref in refs if (leaf := ref()) is not None]
    return {id(behind(leaf)) for leaf in alive}


def _is_made_of(array: Any, gradients: set[int], values: set[int]) -> bool:
    """Whether an array is made of gradients, without what they are of.

    Ranks that average parameters, which are made of both, may begin with any.
    """
    found, seen, ahead = False, set[int](), [behind(array)]
    while ahead:
        one = ahead.pop()
        if id(one) in values:
            return False
        if id(one) in gradients:
            found = True
        elif id(one) not in seen:
            seen.add(id(one))
            equation = made_by(one)
            ahead += operands(equation) if equation is not None else []
    return found


def _tell(job: state.Job) -> None:
    start = _reduced
    if start is None or not start.numbers or not end_weights.are_told(job):
        return
    num_moved = _native.core().num_broadcast_bytes() - start.num_moved
    if num_moved >= start.num_bytes:  # a program may do so after its first step
        return
    number = zlib.crc32(f"{start.shapes} {len(start.numbers)}".encode())
    training = training_signs.gradient
    at = f" at {training.place}" if training and training.place else ""
    text = (
        "The ranks train different weights: they began with other values, and "
        "equal gradients keep them apart. Call "
        "`hvd_keras.jax.broadcast_pytree` for the parameters before the first "
        f"step. Received: gradients{at}, and of what they are for"
    )
    about = f"{remarks.TRAINS_ALONE} {number:08x}"
    remarks.keep(text, about, value=json.dumps(start.numbers))


last_words.at_end.append(_tell)
training_signs.at_gradients.append(_note)
