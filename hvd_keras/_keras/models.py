"""What a model consists of: its layers, optimizers and adapted states.

| Private name | Used to |
|---|---|
| `Model._flatten_layers` | find all layers of a model |
| `Model._compile_metrics` | know whether metrics have their variables |
| `CompileMetrics._user_metrics`, `_user_weighted_metrics` | know metrics that \
a first step builds |
| `Layer._call_has_training_arg` | call it symbolically |
| `backend.compute_output_spec` | give them these before a step |
| `symbolic_scope.in_symbolic_scope` | know such a call |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras._keras import name_counts
from hvd_keras._keras.lookup import private_module, require

_symbolic_scope = private_module("backend.common.symbolic_scope")
require(_symbolic_scope, "in_symbolic_scope", [])
_LONGEST = 100  # nobody has a longer list of optimizers


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        keras.Model, "_flatten_layers", ["self", "include_self", "recursive"]
    )


def layers_of(model: Any) -> list[Any]:
    """Returns a model or layer and all layers in it."""
    return list(model._flatten_layers())


def is_symbolic() -> bool:
    """Whether Keras runs layers for the shapes of what they return alone."""
    return bool(_symbolic_scope.in_symbolic_scope())


def has_our_strategy(model: Any) -> bool:
    """Whether a model was made in an `HvdStrategy`."""
    strategy = getattr(model, "distribute_strategy", None)
    return bool(
        getattr(getattr(strategy, "extended", None), "hvd_is_ours", False)
    )


def is_fully_built(model: Any) -> bool:
    """Whether the model and all layers in it have their weights.

    A model that was never called, such as a GAN, has them if its parts do.
    """
    return all(
        layer.built or _is_mere_container(layer) for layer in layers_of(model)
    )


def build_metrics(model: Any, batch: Any) -> bool:
    """Gives the metrics of `compile` their variables, without a step.

    Args:
        model: The model; built and compiled.
        batch: A batch of `fit`, or its specification.

    Returns:
        Whether they have them now. A model that cannot be called symbolically
        gets them in its first step.
    """
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is None or metrics.built:
        return True
    with name_counts.uncounted():
        x, y, weights = keras.utils.unpack_x_y_sample_weight(
            keras.tree.map_structure(_symbolic, batch)
        )
    options = {"training": False} if model._call_has_training_arg else {}

    def step(x: Any, y: Any, weights: Any) -> None:
        y_pred = model(x, **options)
        model.compute_metrics(x, y, y_pred, sample_weight=weights)

    infer = require(private_module("backend"), "compute_output_spec")
    try:
        infer(step, x, y, weights)
    except Exception:
        return False
    return bool(metrics.built)


def own_metrics_of(model: Any) -> list[Any]:
    """Returns the metrics of a model that `compile` does not know."""
    compiled = getattr(model, "_compile_metrics", None)
    return [metric for metric in model.metrics if metric is not compiled]


def given_metrics_of(model: Any) -> list[Any]:
    """Returns the metrics that a model has or gets, but no names of some."""
    compiled = getattr(model, "_compile_metrics", None)
    given = [
        own_metrics_of(model),
        getattr(compiled, "_user_metrics", None),
        getattr(compiled, "_user_weighted_metrics", None),
    ]
    return [
        metric
        for metric in keras.tree.flatten(given)
        if isinstance(metric, keras.metrics.Metric)
    ]


def _symbolic(part: Any) -> Any:
    dtype = keras.backend.standardize_dtype(part.dtype)
    return keras.KerasTensor(part.shape, dtype)


def _is_mere_container(layer: Any) -> bool:
    """Whether a layer gets its weights from its sublayers alone."""
    makes_none = layer.build.__module__.startswith("keras.")
    is_model = isinstance(layer, keras.Model) and makes_none
    return is_model and len(layers_of(layer)) > 1


def optimizers_of(model: Any) -> list[Any]:
    """Returns all optimizers of a model, in an order equal on all ranks.

    They are attributes of the model or of a model in it, or members of lists
    and dicts there.
    """
    found: dict[int, Any] = {}
    for layer in layers_of(model):
        for _, value in sorted(vars(layer).items()):
            _find_optimizers(value, found, depth=3)
    return list(found.values())


def _find_optimizers(value: Any, found: dict[int, Any], depth: int) -> None:
    if isinstance(value, keras.optimizers.Optimizer):
        found.setdefault(id(value), value)
        return
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and depth and len(value) <= _LONGEST:
        for member in value:
            _find_optimizers(member, found, depth - 1)


def finalize(model: Any) -> bool:
    """Derives again what layers have derived from their weights.

    `Normalization`, for example, computes with constants that it made of its
    mean and variance.

    Returns:
        Whether any of them changed. Programs that were traced contain the old
        ones.
    """
    has_changed = False
    for layer in layers_of(model):
        derive = getattr(layer, "finalize_state", None)
        if callable(derive) and layer.built and layer.weights:
            before = _constants_of(layer)
            derive()
            has_changed |= before != _constants_of(layer)
    return has_changed


def _constants_of(layer: Any) -> list[bytes]:
    return [
        keras.ops.convert_to_numpy(value).tobytes()
        for _, value in sorted(vars(layer).items())
        if keras.ops.is_tensor(value)
    ]


def adapted_states_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and values of what layers have learnt beside weights.

    These are vocabularies, with their weights, and boundaries of bins.
    """
    for layer in layers_of(model):
        if callable(getattr(layer, "get_vocabulary", None)):
            yield (
                f"the vocabulary of layer {layer.name!r}",
                [str(token) for token in layer.get_vocabulary()],
            )
        for attribute, words in (
            ("bin_boundaries", "the bin boundaries"),
            ("idf_weights_const", "the IDF weights"),
            ("mean", "the mean"),
            ("variance", "the variance"),
        ):
            value = vars(layer).get(attribute)
            is_adapted = callable(getattr(layer, "adapt", None))
            if is_adapted and value is not None:
                name = f"{words} of layer {layer.name!r}"
                yield name, _as_array(value)


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    if keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    return np.asarray(value)


check_names()
