"""Finds the values that a user's layers hold where Keras does not look.

They are attributes, or in lists, dicts and objects of other classes there.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from hvd_keras._keras import name_counts

_DEPTH = 5
_MOST = 10_000  # members of a list or dict; longer ones are data

_LEAVES = (
    *(str, bytes, int, float, complex, type, types.ModuleType),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)

# Layers are looked at by themselves. The others keep what is theirs.
_APART = (
    *(keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer),
    *(keras.metrics.Metric, keras.callbacks.Callback),
)

# Of these packages all objects are known, or hold no values.
_SKIPPED = ("keras", "tensorflow", "jax", "jaxlib", "numpy", "hvd_keras")

# Attributes of layers of torch that hold what torch tracks.
_OF_TORCH = ("_buffers", "_modules", "_parameters")

# What a layer of Keras has by itself, and what `fit` puts there.
_OF_KERAS: set[str] = {"_jax_state"}


def values_in(
    layers: Iterable[Any], read: Callable[[Any], Any], seen: set[int]
) -> Iterator[tuple[str, str, Any]]:
    """Yields the layer that holds a value, its path there, and the value.

    Args:
        layers: The layers, each before its parts.
        read: Returns the value of a variable or tensor, None for other objects.
        seen: Ids of objects to leave out; those that are found are added.
    """
    if len(_OF_KERAS) == 1:
        with name_counts.uncounted():
            made = (keras.layers.Layer(), keras.Sequential())
        of_layers = {name for layer in made for name in vars(layer)}
        _OF_KERAS.update(of_layers.difference(_OF_TORCH))
    for layer in layers:
        members = _members_of(layer)
        for name in _OF_KERAS.intersection(members):
            del members[name]
        for path, value in _walk(members, read, seen, _DEPTH):
            yield layer.name, path, value


def _walk(
    members: dict[str, Any],
    read: Callable[[Any], Any],
    seen: set[int],
    depth: int,
) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(members.items()):
        # TensorFlow notes what it tracks in attributes of this name.
        if name.startswith(("_self_", "_hvd_")) or id(value) in seen:
            continue
        if isinstance(value, _LEAVES) or value is None:
            continue
        seen.add(id(value))
        found = read(value)
        if found is not None:
            yield name, found
        elif depth and not isinstance(value, _APART):
            inner = _members_of(value)
            for path, each in _walk(inner, read, seen, depth - 1):
                yield path if name in _OF_TORCH else f"{name}.{path}", each


def _members_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        members = {str(key): each for key, each in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        members = {f"{i}": each for i, each in enumerate(value)}
    elif type(value).__module__.partition(".")[0] in _SKIPPED and not (
        isinstance(value, keras.layers.Layer)
    ):
        members = {}
    else:
        members = dict(getattr(value, "__dict__", {}))
    return members if len(members) <= _MOST else {}
