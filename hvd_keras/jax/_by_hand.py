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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from hvd_keras import _native
from hvd_keras._common import error_text, remarks, training_signs
from hvd_keras._job import last_words, state
from hvd_keras._values import end_weights
from hvd_keras.jax._tracers import behind, made_by, operands
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average

_MOST = 100  # calls that compute gradients, of which none was reduced


class _Start(NamedTuple):
    """What one call computes gradients for, and the gradients.

    Attributes:
        numbers: Of the first values.
        forms: The shape and dtype of each value.
        names: Where each value is.
        num_bytes: The size of the values.
        num_moved: The bytes that were broadcast before.
        are_results: Whether a program gives the gradients to Python.
    """

    numbers: list[float]
    forms: list[tuple[Any, ...]]
    names: list[str]
    num_bytes: int
    num_moved: int
    values: list[weakref.ref[Any]]
    gradients: list[weakref.ref[Any]]
    are_results: bool


_starts: list[_Start] = []
_num_seen = 0
_reduced: _Start | None = None
_given: list[Any] = []  # the last arrays that were reduced outside of programs


def note_reduced(
    name: str, arrays: Sequence[Any], op: Any, process_set: ProcessSet
) -> None:
    """Notes arrays that a call of the user reduces, maybe gradients."""
    if not _starts:
        return
    is_plain = _is_reduced(arrays)
    if _reduced is not None and len(_reduced.names) == len(arrays):
        error_text.note_gradients(name, _reduced.names)
    if is_plain and op in (None, Average):
        for look in training_signs.at_plain_mean:
            look(process_set)


def _is_reduced(arrays: Sequence[Any]) -> bool:
    """Whether these are gradients, and have been changed by nobody."""
    global _reduced
    for array in arrays:
        if not isinstance(array, jax.core.Tracer):
            _given.append(array)
        for start in _starts:
            if (start.are_results and _are_given(start)) or _is_made_of(
                array, _ids(start.gradients), _ids(start.values)
            ):
                _reduced = start
                own = _ids(start.gradients)
                _starts.clear()
                _given.clear()
                return start.are_results or id(behind(array)) in own
    del _given[: -max(len(start.forms) for start in _starts)]
    return False


def _are_given(start: _Start) -> bool:
    """Whether the last arrays look like gradients that a program gave.

    Ranks may also average parameters after some steps, which are near the first
    ones.
    """
    arrays = _given[-len(start.forms) :]
    if [_form(each) for each in arrays] != start.forms:
        return False
    numbers = end_weights.some_of(arrays)
    pairs = list(zip(numbers, start.numbers, strict=False))
    apart = sum((now - first) ** 2 for now, first in pairs)
    return apart > 0.5 * sum(first**2 for _, first in pairs)


def _note(values: Any, result: Any) -> None:
    """Notes the values that gradients are computed for."""
    global _num_seen
    if _reduced is not None or _num_seen == _MOST or state.job() is None:
        return
    _num_seen += 1
    with contextlib.suppress(Exception):  # such as keys, or a private name
        _starts.append(_start_of(values, result, _is_program()))


def _is_program() -> bool:
    """Whether JAX itself has called what computes the gradients."""
    caller = sys._getframe(3)  # behind `_note` and its caller
    return str(caller.f_globals.get("__name__")).startswith("jax.")


def _start_of(values: Any, result: Any, are_results: bool) -> _Start:
    paths, leaves = zip(*jax.tree.leaves_with_path(values), strict=True)
    forms = list(map(_form, leaves))
    known = list(_known(list(leaves), forms))
    return _Start(
        end_weights.some_of(known),
        forms,
        [f"params{jax.tree_util.keystr(path)}" for path in paths],
        sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms),
        _native.core().num_broadcast_bytes(),
        list(map(weakref.ref, leaves)),
        [
            weakref.ref(leaf)
            for leaf in jax.tree.leaves(result)
            if _form(leaf) in forms
        ],
        are_results,
    )


def _form(leaf: Any) -> tuple[Any, ...]:
    return tuple(getattr(leaf, "shape", ())), getattr(leaf, "dtype", None)


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
    number = zlib.crc32(f"{start.forms} {len(start.numbers)}".encode())
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
