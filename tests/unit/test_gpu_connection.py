"""When `init()` connects the GPUs, before TensorFlow takes their memory."""

from __future__ import annotations

import pytest

from hvd_keras._native import gpu, pinning
from hvd_keras.config import Config


@pytest.mark.parametrize(
    ("setting", "backend", "tensorflow", "expected"),
    [
        ("auto", "tensorflow", "tensorflow", True),
        ("auto", "tensorflow", "tensorflow-cpu", False),
        ("auto", "tensorflow", None, False),
        ("auto", "torch", "tensorflow", False),
        ("late", "tensorflow", "tensorflow", False),
        ("early", "torch", None, True),
        ("on", "torch", None, True),
    ],
)
def test_init_connects_gpus_that_tensorflow_will_use(
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    backend: str,
    tensorflow: str | None,
    expected: bool,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(gpu, "problem", lambda: None)
    config = Config(gpu=setting)
    environ = {"KERAS_BACKEND": backend}
    assert gpu.wants_early(config, environ, tensorflow) == expected


def test_a_rank_has_a_gpu_if_it_sees_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for visible, has_own in (("3", True), ("3,4", False), ("", False)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert pinning.has_own_gpu(Config()) == has_own
