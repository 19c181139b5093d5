"""Compares what ranks train with: hyperparameters, losses, arguments of `fit`.

Ranks that differ in one of these get different weights from equal gradients, or
different gradients from equal rows. Learning rates are compared by themselves,
for they may change in each step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras._gradients import aggregation
from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import losses, models
from hvd_keras._keras import names as private
from hvd_keras._values import agreement
from hvd_keras._values.agreement import Check
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet

# These may differ: they are no hyperparameters, or are compared elsewhere.
_MAY_DIFFER = frozenset(
    {
        "batch_shape",  # that of the first batch, if a model is built for it
        "build_config",
        "dtype",  # of weights: an error of its own
        "dynamic",
        "module",
        "name",
        "registered_name",
        "seed",  # each rank may draw its own numbers
        "seed_generator",
        "shared_object_id",
        "trainable",
    }
)
# What `adapt` has learnt is compared with the model.
_LEARNT = frozenset(
    {"bin_boundaries", "idf_weights", "mean", "variance", "vocabulary"}
)
# Weights are broadcast, or compared.
_OF_WEIGHTS = ("initializer", "_weights")

# What a layer of the user's own has of Keras.
_OF_ALL_LAYERS = ("constraint", "regularizer")

_OF_FIT = ("class_weight",)

_OBJECTS = (
    keras.constraints.Constraint,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.regularizers.Regularizer,
)

_LAYER = "layer "
_LONGEST = 50  # members that a text may name


def compare_settings(fit: keras_calls.Call, process_set: ProcessSet) -> Check:
    """Refuses hyperparameters that differ by rank.

    Raises:
        MismatchError: A setting differs. It names the first, with the values.
    """
    mine = list(settings_of(fit.model, fit.arguments))
    names = [layer.name for layer in models.layers_of(fit.model)]
    of_ranks = yield from agreement.differing(mine, names)
    if of_ranks is None:
        return
    lists = [[tuple(each) for each in listed] for listed, _ in of_ranks]
    _, entries = agreement.first_difference(lists)
    texts = [
        "nothing" if entry is None else "=".join(_named(entry, names))
        for entry, (_, names) in zip(entries, of_ranks, strict=True)
    ]
    ranks = process_set.ranks or []
    raise MismatchError(
        "All ranks must train with the same settings. Received: "
        f"{agreement.by_rank(texts, ranks)}. Build and compile the same model "
        "on each rank: nothing in it may depend on `hvd.rank()`."
    )


def settings_of(
    model: Any, arguments: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yields the settings of a `fit`: names and values, as texts."""
    for number, optimizer in enumerate(models.optimizers_of(model)):
        inner = unwrapped(optimizer)
        kind, suffix = type(inner).__name__, f" #{number + 1}" if number else ""
        yield f"optimizer{suffix}", kind
        place = kind + suffix
        yield from _flat(place, _config_of(inner))
        if isinstance(inner, ReducingOptimizer):
            updates = inner.hvd_settings.local_updates
            described = None if updates is None else updates.described()
            yield from _flat(f"{place}.local_updates", described)
    for number, loss in enumerate(losses.losses_of(model)):
        yield f"loss #{number + 1}", _loss_text(loss)
    yield from _flat("loss_weights", losses.loss_weights_of(model))
    for name in _OF_FIT:
        yield from _flat(name, arguments.get(name))
    for number, layer in enumerate(models.layers_of(model)):
        if aggregation.keeps_its_own(layer) or isinstance(layer, keras.Model):
            continue
        is_of_keras = type(layer).__module__.startswith("keras.")
        for name, value in _config_of(layer).items():
            if is_of_keras or name.endswith(_OF_ALL_LAYERS):
                # The names of layers may differ: Keras counts them.
                place = f"{number} ({type(layer).__name__})"
                yield from _flat(f"{_LAYER}{place}.{name}", value, name)


def _named(entry: tuple[str, str], names: list[str]) -> tuple[str, str]:
    """Returns the place and the value of a setting; with names of layers."""
    place, value = entry
    if place.startswith(_LAYER):
        number, _, rest = place.removeprefix(_LAYER).partition(" ")
        place = f"{_LAYER}{names[int(number)]!r} {rest}"
    return place, value


def _config_of(part: Any) -> dict[str, Any]:
    try:
        with private.without_tensorflow():
            config: Any = part.get_config()
    except Exception:  # of the user's, or of what it cannot write
        return {}
    return config if isinstance(config, dict) else {}


def _loss_text(loss: Any) -> str:
    if isinstance(loss, keras.losses.Loss):
        # Not all losses of Keras write what they were made with.
        held = dict(_flat("", vars(loss)))
        return f"{type(loss).__name__}({held})"
    return str(getattr(loss, "__name__", loss))


def _flat(place: str, value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the numbers and texts in a configuration."""
    if name in _MAY_DIFFER or name in _LEARNT or name.endswith(_OF_WEIGHTS):
        return
    if isinstance(value, _OBJECTS):
        value = {
            "class_name": type(value).__name__,
            "config": _config_of(value),
        }
    if name == "learning_rate" and not isinstance(value, dict):
        return  # not a schedule
    if isinstance(value, dict):
        # An object of Keras: its class, and its own configuration.
        if "class_name" in value and "config" in value:
            yield place, str(value["class_name"])
            value = value["config"]
            if not isinstance(value, dict):
                value = {"config": value}
        for key, each in value.items():
            yield from _flat(f"{place}.{key}", each, str(key))
    elif isinstance(value, list | tuple) and len(value) > _LONGEST:
        number = zlib.crc32(repr(value).encode())
        yield place, f"a list of {len(value)} with the checksum {number:08x}"
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _flat(f"{place}[{index}]", each, name)
    elif isinstance(value, bool | int | float | str | np.generic):
        text = f"{value:.9g}" if isinstance(value, float) else repr(value)
        yield place, text
    elif value is None:
        yield place, "None"
