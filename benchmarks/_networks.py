"""The gradients of known networks, and what each of them takes to compute."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Gradient(NamedTuple):
    """One gradient, of float32."""

    num_bytes: int
    operations: float  # multiplications of the forward pass, for one sample


# Of Keras, without their weights.
_APPLICATIONS = {
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "vgg16": "VGG16",
    "inception_v3": "InceptionV3",
}
NAMES = ["cnn", "bert", *_APPLICATIONS]


def gradients_of(name: str) -> list[Gradient]:
    """Returns the gradients of a network, in order of creation."""
    if name == "cnn":  # of fit.py
        layers = [
            _with_bias(9, 32, 26 * 26),
            _with_bias(9 * 32, 64, 24 * 24),
            _with_bias(12 * 12 * 64, 128),
            _with_bias(128, 10),
        ]
        return [gradient for layer in layers for gradient in layer]
    if name == "bert":
        return _bert(layers=12, width=768, words=30_522, tokens=128)
    return _of_keras(_APPLICATIONS[name])


def _with_bias(inputs: int, outputs: int, positions: int = 1) -> list[Gradient]:
    return [
        Gradient(4 * inputs * outputs, inputs * outputs * positions),
        Gradient(4 * outputs, outputs * positions),
    ]


def _bert(layers: int, width: int, words: int, tokens: int) -> list[Gradient]:
    """An encoder as BERT-base, with its three tables of embeddings."""
    norm = _with_bias(1, width, tokens)
    gradients = [Gradient(4 * n * width, 0) for n in (words, 512, 2)]
    gradients += norm
    for _ in range(layers):
        for _ in range(4):  # query, key, value, output
            gradients += _with_bias(width, width, tokens)
        gradients += norm
        gradients += _with_bias(width, 4 * width, tokens)
        gradients += _with_bias(4 * width, width, tokens)
        gradients += norm
    return gradients


def _of_keras(name: str) -> list[Gradient]:
    import keras

    model: Any = getattr(keras.applications, name)(weights=None)
    gradients = []
    for layer in model.layers:
        # A kernel acts at each position of the output, which has channels last.
        positions = math.prod(layer.output.shape[1:-1])
        for weight in layer.trainable_weights:
            size = math.prod(weight.shape)
            gradients.append(Gradient(4 * size, size * positions))
    return gradients
