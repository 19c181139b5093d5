"""Variables whose gradients stay on their rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from hvd_keras._keras.names import identity_of


class LocalVariables:
    """The variables and layers that were registered as local."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self._layers: list[Any] = []

    def add(self, variable: Any) -> None:
        """Registers a variable."""
        if not hasattr(variable, "assign"):
            raise TypeError(
                "Only a variable can be registered as local. Received: "
                f"{type(variable).__name__}."
            )
        self.registered.append(variable)

    def add_layers(self, layers: Any) -> None:
        """Registers the weights of one or more layers.

        The layers may be built later.
        """
        if layers is None:
            return
        if isinstance(layers, keras.layers.Layer):
            layers = [layers]
        if not isinstance(layers, list | tuple) or not all(
            isinstance(layer, keras.layers.Layer) for layer in layers
        ):
            raise ValueError(
                "`local_layers` must be a Keras layer or a list of them. "
                f"Received: local_layers={layers!r}."
            )
        self._layers += layers

    def ids(self) -> frozenset[int]:
        """Returns `identity_of` each local variable that exists by now."""
        for variable in self:
            variable._hvd_is_local = True  # for whoever compares ranks
        return frozenset(map(identity_of, self))

    def __iter__(self) -> Iterator[Any]:
        yield from self.registered
        for layer in self._layers:
            yield from layer.weights

    def __bool__(self) -> bool:
        return bool(self.registered or self._layers)
