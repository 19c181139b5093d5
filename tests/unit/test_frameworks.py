"""A tensor's classes tell its framework, also for users' subclasses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras._common.frameworks import cast, dtype_of, framework_of
from hvd_keras.compression import Compression


def _torch_tensor() -> Any:
    return pytest.importorskip("torch").ones(3)


def _torch_subclass() -> Any:
    torch = pytest.importorskip("torch")

    class Named(torch.Tensor):
        """Is defined in a user's module."""

    return torch.ones(3).as_subclass(Named)


def _torch_parameter() -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Parameter(torch.ones(3))


def _jax_array() -> Any:
    return pytest.importorskip("jax.numpy").ones(3)


_MAKERS = {
    "torch": [_torch_tensor, _torch_subclass, _torch_parameter],
    "jax": [_jax_array],
    "tensorflow": [
        lambda: tf.ones(3),
        lambda: tf.Variable(tf.ones(3)),
        lambda: np.ones(3, np.float32),
    ],
}
_CASES = [(make, name) for name, makers in _MAKERS.items() for make in makers]


@pytest.mark.parametrize(("make", "framework"), _CASES)
def test_framework_is_that_of_a_base_class(make: Any, framework: str) -> None:
    assert framework_of(make()) == framework


@pytest.mark.parametrize("make", [make for make, _ in _CASES])
def test_cast_keeps_the_framework(make: Any) -> None:
    tensor = make()
    assert dtype_of(tensor) == "float32"
    narrow = cast(tensor, "bfloat16")
    assert dtype_of(narrow) == "bfloat16"
    assert framework_of(narrow) == framework_of(tensor)


def test_torch_subclass_is_compressed_as_a_torch_tensor() -> None:
    tensor = _torch_subclass()
    narrow, context = Compression.fp16.compress(tensor)
    assert dtype_of(narrow) == "float16"
    wide = Compression.fp16.decompress(narrow, context)
    assert type(wide) is type(tensor)
    assert wide.tolist() == [1.0, 1.0, 1.0]


def test_jax_tracer_belongs_to_jax() -> None:
    jax = pytest.importorskip("jax")
    seen = []

    def note(array: Any) -> Any:
        seen.append(framework_of(array))
        return cast(array, "float16")

    assert jax.jit(note)(np.ones(3, np.float32)).dtype == "float16"
    assert seen == ["jax"]
