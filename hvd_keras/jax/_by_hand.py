"""Tells of ranks that average gradients by hand, and began with other values.

It compares nothing while ranks train: they may trace at other times. Each rank
tells hvdrun some of the numbers that its first gradients were computed for.

A private name of JAX, `cache_miss` with its `args` and `kwargs`, tells for
which values a program is traced. Where JAX has another, nothing is told of
programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import types
import weakref
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np

from hvd_keras import _native
from hvd_keras._common import error_text, remarks, training_signs
from hvd_keras._job import last_words, state
from hvd_keras._values import end_weights
from hvd_keras.jax._tracers import behind, made_by, operands
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Sum

_MOST = 100  # calls that compute gradients, of which none was reduced
_MOST_KEPT = 8  # of them
_MOST_ARRAYS = 10_000  # that are reduced, and looked at
_MOST_OF_ONE = 16  # numbers of a value
_MOST_TOLD = 64  # of all
_MOST_STATES = 4  # arrays that an optimizer may keep side by side for each


@dataclasses.dataclass(frozen=True, eq=False)
class _Start:
    """What one call computes gradients for, and the gradients.

    Attributes:
        numbers: Of the first values, for each.
        forms: The shape and dtype of each value.
        names: Where each value is.
        num_bytes: The size of each value.
        num_moved: The bytes that were broadcast before.
        are_results: Whether a program gives the gradients to Python.
        reduced: The gradients that were reduced, by their places.
    """

    numbers: list[list[float]]
    forms: list[tuple[Any, ...]]
    names: list[str]
    num_bytes: list[int]
    num_moved: int
    values: list[weakref.ref[Any]]
    gradients: list[weakref.ref[Any]]
    are_results: bool
    reduced: set[int] = dataclasses.field(default_factory=set)


_starts: list[_Start] = []
_num_seen = 0
_reduced: _Start | None = None
_num_left = _MOST_ARRAYS  # arrays that are looked at yet
_given: list[weakref.ref[Any]] = []  # reduced outside of programs


def note_reduced(
    name: str, arrays: Sequence[Any], op: Any, process_set: ProcessSet
) -> None:
    """Notes arrays that a call of the user reduces, maybe gradients."""
    if not _starts or op not in (None, Average, Sum):
        return
    with contextlib.suppress(Exception):  # such as an array that is deleted
        places, is_plain = _look(arrays)
        if _reduced is not None and places:
            names = [_reduced.names[place] for place in places]
            error_text.note_gradients(name, names)
        if is_plain and op != Sum:
            for look in training_signs.at_plain_mean:
                look(process_set)


def _look(arrays: Sequence[Any]) -> tuple[list[int], bool]:
    """Returns the places of the gradients among arrays.

    Also, whether they are the first that are found, and nobody has changed
    them.
    """
    global _reduced, _num_left
    is_first, is_plain, found = _reduced is None, False, list[int]()
    _starts[:] = [one for one in _starts if one.are_results or _ids(one, "g")]
    known = [(one, _ids(one, "g"), _ids(one, "v")) for one in _starts]
    for array in arrays:
        if not isinstance(array, jax.core.Tracer):
            _given.append(weakref.ref(array))
        for start, gradients, values in known:
            places = _made_of(array, gradients, values)
            is_plain |= id(behind(array)) in gradients
            if not places and start.are_results and _are_given(start):
                places, is_plain = set(range(len(start.forms))), True
            if places and _reduced in (None, start):
                _reduced = start
                start.reduced.update(places)
                found += sorted(places)
    longest = max((len(one.forms) for one in _starts), default=1)
    del _given[:-longest]
    _num_left -= len(arrays)
    if _reduced is not None:
        _starts[:] = [_reduced]
        # The others of these gradients may come one by one.
        _num_left = 4 * longest if is_first else _num_left
    if _num_left <= 0:
        _starts.clear()
    return found, is_first and is_plain


def _are_given(start: _Start) -> bool:
    """Whether the last arrays look like gradients that a program gave.

    Ranks may also average parameters after some steps, which are near the first
    ones.
    """
    arrays = [ref() for ref in _given[-len(start.forms) :]]
    if [_form(each) for each in arrays] != start.forms:
        return False
    pairs = [
        pair
        for array, first in zip(arrays, start.numbers, strict=True)
        for pair in zip(_numbers_of(array), first, strict=False)
    ]
    apart = sum((now - first) ** 2 for now, first in pairs)
    return apart > 0.5 * sum(first**2 for _, first in pairs)


def _note(values: Any, gradients: Any, is_alone: bool) -> None:
    """Notes the values that gradients are computed for.

    Args:
        values: The values.
        gradients: Their gradients.
        is_alone: Whether the function has no other arguments.
    """
    global _num_seen
    is_over = _reduced is not None or _num_left <= 0 or _num_seen == _MOST
    if is_over or state.job() is None:
        return
    _num_seen += 1
    with contextlib.suppress(Exception):  # such as keys, or a private name
        start = _start_of(values, gradients, _is_program())
        # One array may be the data, too.
        if len(start.forms) > 1 or not is_alone:
            _starts.append(start)
            del _starts[:-_MOST_KEPT]


def _is_program() -> bool:
    """Whether JAX itself has called what computes the gradients."""
    caller = sys._getframe(3)  # behind `_note` and its caller
    return str(caller.f_globals.get("__name__")).startswith("jax.")


def _start_of(values: Any, gradients: Any, are_results: bool) -> _Start:
    paths, leaves = zip(*jax.tree.leaves_with_path(values), strict=True)
    forms = list(map(_form, leaves))
    known = list(_known(list(leaves), forms))
    return _Start(
        [
            [*chain.from_iterable(map(_numbers_of, known[place :: len(forms)]))]
            for place in range(len(forms))
        ],
        forms,
        [f"params{jax.tree_util.keystr(path)}" for path in paths],
        [math.prod(shape) * dtype.itemsize for shape, dtype in forms],
        _native.core().num_broadcast_bytes(),
        list(map(weakref.ref, leaves)),
        list(map(weakref.ref, jax.tree.leaves(gradients))),
        are_results,
    )


def _numbers_of(array: Any) -> list[float]:
    # In Python: what JAX did here would be a part of the user's program.
    numbers = end_weights.some_of([np.asarray(array)])
    return numbers[:: -(-len(numbers) // _MOST_OF_ONE) or 1]


def _form(leaf: Any) -> tuple[Any, ...]:
    dtype = getattr(leaf, "dtype", None)
    if isinstance(leaf, np.ndarray):  # a program computes in JAX's own dtype
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(getattr(leaf, "shape", ())), dtype


def _known(leaves: list[Any], forms: list[Any]) -> Iterator[Any]:
    """Yields arrays with values: these, or those that stand for them.

    The arguments of a program may have arrays of these shapes several times:
    the parameters, and what an optimizer has for them, all of one kind after
    all of another or side by side. One array alone may be the data.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        yield from leaves
        return
    given = [
        leaf for leaf in jax.tree.leaves(_arguments()) if hasattr(leaf, "dtype")
    ]
    theirs = list(map(_form, given))
    steps = range(1, _MOST_STATES + 1 if len(forms) > 1 else 2)
    places = [
        slice(i, i + step * (len(forms) - 1) + 1, step)
        for step in steps
        for i in range(len(given) - step * (len(forms) - 1))
    ]
    places = [place for place in places if theirs[place] == forms]
    if len(forms) > 1 or len(places) == 1:
        for place in places:
            yield from given[place]


def _arguments() -> Any:
    """Returns what the outermost program is called with, while it is traced."""
    found: Any = None
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "cache_miss":
            found = frame.f_locals.get("args"), frame.f_locals.get("kwargs")
        frame = frame.f_back
    return found


def _ids(start: _Start, which: str) -> dict[int, int]:
    """Returns the places of what is alive, by the `id` of each."""
    refs = start.gradients if which == "g" else start.values
    alive = [(place, ref()) for place, ref in enumerate(refs)]
    return {id(behind(one)): n for n, one in alive if one is not None}


def _made_of(
    array: Any, gradients: dict[int, int], values: dict[int, int]
) -> set[int]:
    """Returns the places of the gradients that an array is made of.

    Nothing if it is made of what they are for, too: ranks that average
    parameters may begin with any.
    """
    found, seen, ahead = set[int](), set[int](), [behind(array)]
    while ahead:
        one = ahead.pop()
        if id(one) in values:
            return set()
        if id(one) in gradients:
            found.add(gradients[id(one)])
        elif id(one) not in seen:
            seen.add(id(one))
            equation = made_by(one)
            ahead += operands(equation) if equation is not None else []
    return found


def _tell(job: state.Job) -> None:
    global _reduced, _num_seen, _num_left
    start = _reduced
    # A later job of this process begins anew.
    _reduced, _num_seen, _num_left = None, 0, _MOST_ARRAYS
    _starts.clear()
    _given.clear()
    if start is None or not end_weights.are_told(job):
        return
    places = sorted(start.reduced)
    each = max(1, _MOST_TOLD // max(1, len(places)))
    of_each = (start.numbers[place][:each] for place in places)
    numbers = [*chain.from_iterable(of_each)][:_MOST_TOLD]
    num_moved = _native.core().num_broadcast_bytes() - start.num_moved
    # A program may broadcast after its first step.
    if not numbers or num_moved >= sum(start.num_bytes[n] for n in places):
        return
    forms = [start.forms[place] for place in places]
    number = zlib.crc32(f"{forms} {len(numbers)}".encode())
    training = training_signs.gradient
    at = f" at {training.place}" if training and training.place else ""
    text = (
        "The ranks train different weights: they began with other values, and "
        "equal gradients keep them apart. Call "
        "`hvd_keras.jax.broadcast_pytree` for the parameters before the first "
        f"step. Received: gradients{at}, and of what they are for"
    )
    about = f"{remarks.TRAINS_ALONE} {number:08x}"
    remarks.keep(text, about, value=json.dumps(numbers))


last_words.at_end.append(_tell)
training_signs.at_gradients.append(_note)
