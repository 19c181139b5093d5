"""The private names of Keras that hvd_keras uses only on torch.

Keras 3.16 averages over the ranks of `torch.distributed` by itself: it wraps
models in torch's DistributedDataParallel, which broadcasts weights and averages
gradients, and it sums the states of metrics. Older releases have no
`ddp_model`.

| Name | Used to |
|---|---|
| `TorchTrainer.ddp_model` | take a model out of its wrapper |
| `distribution_lib.distribution` | know whether Keras spreads the model |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import torch

from hvd_keras._common.replacements import replace
from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.lookup import private_module

_WRAP = "_initialize_ddp"
_MAKERS = ("make_train_function", "make_test_function", "make_predict_function")


def keep_from_averaging(averages: Callable[[Any], bool]) -> None:
    """Keeps Keras from averaging over the ranks if `averages(model)`.

    Metrics are not summed either where `MetricAverageCallback` does so.

    Args:
        averages: Whether hvd_keras averages the gradients of a model.
    """
    owner = next((c for c in keras.Model.__mro__ if _WRAP in vars(c)), None)
    if owner is None:
        return
    averages = uncompiled(averages)
    for name in (_WRAP, *_MAKERS):
        replace(owner, name, functools.partial(_unwrapping, averages))
    replace(
        owner,
        "get_metrics_result",
        functools.partial(_summing_once, owner, averages),
    )


def _unwrapping(
    averages: Callable[[Any], bool], original: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        if _shares_job() and averages(self):
            _refuse_distribution()
            object.__setattr__(self, "ddp_model", None)
            if original.__name__ == _WRAP:
                return None
        return original(self, *args, **kw)

    return wrapper


def _summing_once(
    owner: Any,
    averages: Callable[[Any], bool],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    def get_metrics_result(self: Any) -> Any:
        if _shares_job() and (_sums_metrics() or averages(self)):
            return super(owner, self).get_metrics_result()
        return original(self)

    return get_metrics_result


def _shares_job() -> bool:
    """Whether Keras takes part in a job of `torch.distributed`."""
    return (
        torch.distributed.is_available() and torch.distributed.is_initialized()
    )


@uncompiled
def _sums_metrics() -> bool:
    return any(call.sums_metrics for call in keras_calls.running_calls()[:1])


def _refuse_distribution() -> None:
    # That of Keras alone, not one over our ranks.
    distribution = private_module(
        "distribution.distribution_lib"
    ).distribution()
    if distribution is not None:
        raise ValueError(
            "A model with a distributed optimizer must not be in a "
            "`keras.distribution`, where Keras spreads it over the processes "
            f"too. Received: {type(distribution).__name__}."
        )
