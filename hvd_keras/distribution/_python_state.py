"""Gives what a script keeps in Python its values back after a trial.

Keras knows the variables of a model. A step may also keep tensors in a list, a
counter in an attribute or a global name, an object of its own, a generator of
random numbers. What a trial may change is what the functions that it runs can
reach: attributes, the global names that they say, what they close over.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras._common import user_code
from hvd_keras._keras import models

_LARGEST = 50_000_000  # elements of an array
_LONGEST = 100_000  # elements of a list that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@contextlib.contextmanager
def kept(model: Any, *others: Any) -> Iterator[Callable[[], None]]:
    """A context that changes nothing that the script keeps in Python.

    Args:
        model: A model whose steps are tried; its variables are left to others.
        others: What is tried as well, such as losses of the script.

    Yields:
        What gives all back what it had, as often as it is called.
    """
    walk = _Walk(model)
    walk.look_at(_attributes_of(model), *_functions_of(model), *others)
    try:
        yield walk.restore
    finally:
        walk.restore()


class _Names:
    """Names of objects: attributes, or global ones."""

    def __init__(self, names: dict[str, Any], some: Collection[str]) -> None:
        self._names = names
        self._before = {name: names[name] for name in some if name in names}

    def values(self) -> list[Any]:
        """Returns the objects."""
        return list(self._before.values())

    def restore(self) -> None:
        """Gives the names back to the same objects."""
        for name, value in self._before.items():
            if self._names.get(name) is not value:
                self._names[name] = value


class _Walk:
    """Notes the values of all that can be reached."""

    def __init__(self, model: Any) -> None:
        variables = [*model.variables, *getattr(model, "metrics_variables", [])]
        for optimizer in models.optimizers_of(model):
            variables += optimizer.variables
        tensors = [variable.value for variable in variables]
        found = [model, *variables, *tensors]
        if hasattr(model, "buffers"):  # of torch
            found += model.buffers()
        # By number: objects are kept, so no other one gets it.
        self._seen = {id(each): each for each in found}
        self._undo: list[Callable[[], None]] = []

    def look_at(self, *values: Any) -> None:
        """Notes values, and what they hold."""
        todo = list(values)
        while todo:
            value = todo.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                # What cannot be copied is left, such as what threads change.
                with contextlib.suppress(Exception):
                    todo += self._note(value)

    def restore(self) -> None:
        """Gives all of them back what they had."""
        for undo in reversed(self._undo):
            with contextlib.suppress(Exception):
                undo()

    def _note(self, value: Any) -> list[Any]:
        """Notes one; returns what it holds."""
        if (undo := _undo_of(value)) is not None:
            self._undo.append(undo)
        if isinstance(value, _Names):
            return value.values()
        if isinstance(value, tuple | list | set | collections.deque):
            return list(value) if len(value) <= _LONGEST else []
        if isinstance(value, dict):
            return list(value.values()) if len(value) <= _LONGEST else []
        if isinstance(value, types.FunctionType):
            return _names_of(value)
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, types.CellType):
            return _in_cell(value)
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        held: list[Any] = []
        torch = sys.modules.get("torch")
        if isinstance(value, keras.random.SeedGenerator):
            held.append(value.state)
        elif isinstance(getattr(value, "variables", None), list | tuple):
            held += value.variables  # a layer, a metric, an optimizer
        elif torch is not None and isinstance(value, torch.nn.Module):
            held += [*value.parameters(), *value.buffers()]
        is_own = isinstance(value, types.SimpleNamespace) or (
            _is_own(type(value)) and hasattr(value, "__dict__")
        )
        if is_own:
            held += [_attributes_of(value), *_functions_of(value)]
        return held


def _undo_of(value: Any) -> Callable[[], None] | None:
    """Returns what gives an object back what it holds now; None: nothing."""
    torch, tf = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if isinstance(value, _Names):
        return value.restore
    if isinstance(value, types.CellType):
        held = _in_cell(value)
        put = functools.partial(setattr, value, "cell_contents")
        return functools.partial(put, *held) if held else None
    if isinstance(value, list | dict | set | collections.deque):
        return _undo_of_container(value)
    if isinstance(value, np.ndarray):
        if not value.flags.writeable or value.size > _LARGEST:
            return None
        return functools.partial(np.copyto, value, value.copy())
    if torch is not None and isinstance(value, torch.Tensor):
        return _undo_of_tensor(value) if value.numel() <= _LARGEST else None
    if isinstance(value, keras.Variable):
        return functools.partial(value.assign, keras.ops.copy(value.value))
    if tf is not None and isinstance(value, tf.Variable):
        return functools.partial(value.assign, tf.identity(value))
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return functools.partial(setattr, bits, "state", bits.state)
    if torch is not None and isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    return None


def _in_cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _undo_of_container(value: Any) -> Callable[[], None]:
    before = value.copy()

    def undo() -> None:
        if not _holds_the_same(value, before):
            value.clear()
            put = value.extend if hasattr(value, "extend") else value.update
            put(before)

    return undo


def _holds_the_same(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(k in one and one[k] is v for k, v in other.items())
    if isinstance(one, set):
        return bool(one == other)
    return all(a is b for a, b in zip(one, other, strict=True))


def _undo_of_tensor(value: Any) -> Callable[[], None]:
    import torch

    before = value.detach().clone()

    def undo() -> None:
        with torch.no_grad():
            if not torch.equal(value, before):
                value.copy_(before)

    return undo


def _is_own(part: Any) -> bool:
    """Whether a function, a class or a module is the script's."""
    if isinstance(part, types.FunctionType):
        file = part.__code__.co_filename
    else:
        name = str(getattr(part, "__module__", None) or part.__name__)
        if name == "__main__":  # it may have no file
            return True
        file = getattr(sys.modules.get(name), "__file__", None) or ""
    foreign = user_code.foreign_folders()
    return bool(file) and not user_code.is_in_library(file, foreign)


@functools.cache
def _of_keras() -> frozenset[str]:
    """Returns the attributes that Keras has in each model."""
    return frozenset(vars(keras.Model(name="attributes")))


def _attributes_of(value: Any) -> _Names:
    of_keras: Collection[str] = ()
    if isinstance(value, keras.layers.Layer):
        of_keras = _of_keras()
    prefixes = ("_hvd", "_jax_state")
    own = [
        name
        for name in vars(value)
        if name not in of_keras and not name.startswith(prefixes)
    ]
    return _Names(vars(value), own)


def _functions_of(value: Any) -> list[Any]:
    """Returns the functions of the script's classes of an object."""
    return [
        getattr(function, "__func__", getattr(function, "fget", function))
        for kind in type(value).__mro__
        if _is_own(kind)
        for function in vars(kind).values()
    ]


def _names_of(function: types.FunctionType) -> list[Any]:
    """Returns the global names that a function says, and what it closes on."""
    if not _is_own(function):
        return []
    names: set[str] = set()
    codes: list[Any] = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    found: list[Any] = [_Names(function.__globals__, names)]
    for value in found[0].values():
        if isinstance(value, types.ModuleType) and _is_own(value):
            found.append(_Names(vars(value), names))
    return [*found, *(function.__closure__ or ())]
