"""What `keras.distribution` does where hvd_keras is its backend.

| Private name | Used to |
|---|---|
| `distribution_lib.distribution_lib` | be the backend that Keras asks |
| `distribution_lib.set_distribution` | let our front share the data |
| `distribution_lib.distribution` | Keras's own question; it must stay None |
| `Distribution.scope` | go back to what was set before |
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Iterator
from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._common import gpus, log
from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import private_module
from hvd_keras.config import read_setting
from hvd_keras.distribution import _front

_library: Any = private_module("distribution.distribution_lib")
_WHERE_TO_GO = (
    "Each rank has one replica of the whole model. To split a model over "
    "devices, run the script without hvd_keras, by Keras on JAX."
)

_current: Any = None  # the distribution in force
_batch_is_global = False


def install() -> None:
    """Makes `keras.distribution` speak of the ranks of this job."""
    replace(_library, "distribution_lib", lambda original: _backend())
    for owner in (_library, keras.distribution):
        replace(owner, "set_distribution", lambda original: set_distribution)
    replace(keras.distribution, "distribution", lambda original: distribution)
    replace(_library.Distribution, "scope", lambda original: _scope)


def batch_is_global() -> None:
    """Makes `batch_size` that of all ranks, whatever Keras says."""
    global _batch_is_global
    _batch_is_global = True


def distribution() -> Any:
    """Returns the distribution in force, as `set_distribution` got it."""
    return _current


def set_distribution(value: Any) -> None:
    """Makes `fit`, `evaluate` and `predict` share their data, or no longer.

    Args:
        value: A `keras.distribution.DataParallel` with one device for each
            rank; None: each rank trains alone.

    Raises:
        NotImplementedError: It is another distribution.
        ValueError: It has another number of devices than there are ranks.
    """
    global _current
    if value is None:
        _current = None
        _front.begin(None)
        return
    if not isinstance(value, keras.distribution.DataParallel):
        raise NotImplementedError(
            "`set_distribution` must get a `keras.distribution.DataParallel` "
            f"on the ranks of hvdrun. Received: {value!r}. {_WHERE_TO_GO}"
        )
    basics.init()
    shape = tuple(value.device_mesh.shape)
    if shape != (basics.size(),):
        raise ValueError(
            "A `DataParallel` on the ranks of hvdrun must have one device for "
            f"each of the {basics.size()} ranks. Received: a mesh of shape "
            f"{shape}. Leave `devices` and `device_mesh` out."
        )
    of_rank = _batch_is_of_rank()
    _current = value
    _front.begin(
        _front.Front(
            shares_data=value.auto_shard_dataset, batch_is_of_rank=of_rank
        )
    )
    if basics.rank() == 0 and basics.size() > 1:
        _tell_of_sharing(basics.size(), of_rank)


@functools.cache  # said once
def _tell_of_sharing(num_ranks: int, of_rank: bool) -> None:
    log.info(
        f"fit, evaluate and predict share their data over {num_ranks} ranks; "
        "the batch size of arrays is that of "
        + ("each rank." if of_rank else "all ranks together.")
    )


def _batch_is_of_rank() -> bool:
    """Whether `batch_size` is that of a process, as Keras says since 3.16."""
    chosen = read_setting(os.environ, "HVD_DISTRIBUTE_BATCH")
    if chosen != "auto" or _batch_is_global:
        return bool(chosen == "each")
    major, minor = keras.__version__.split(".")[:2]
    is_said = keras.backend.backend() in ("jax", "torch")
    return is_said and (int(major), int(minor)) >= (3, 16)


@contextlib.contextmanager
def _scope(self: Any) -> Iterator[None]:
    before = _current
    set_distribution(self)
    try:
        yield
    finally:
        set_distribution(before)


def _backend() -> Any:
    """Returns the module that Keras asks about devices and processes."""

    def initialize(
        job_addresses: Any = None,
        num_processes: int | None = None,
        process_id: int | None = None,
    ) -> None:
        basics.init()
        for name, value, ours in (
            ("num_processes", num_processes, basics.size()),
            ("process_id", process_id, basics.rank()),
        ):
            if value not in (None, ours):
                raise ValueError(
                    f"`{name}` must be None, or {ours} as hvdrun has it. "
                    f"Received: {name}={value}."
                )

    def list_devices(device_type: str | None = None) -> list[str]:
        kind = "gpu" if gpus.visible(os.environ) else "cpu"
        if (device_type or kind).lower() != kind:
            return []
        return [f"{kind}:{rank}" for rank in range(_size())]

    def get_device_count(device_type: str | None = None) -> int:
        return len(list_devices(device_type))

    def same(value: Any, layout: Any = None) -> Any:
        return value  # each rank has all of it

    def refuse(*args: Any) -> Any:
        raise NotImplementedError(
            "A mesh or a layout of devices has no meaning on the ranks of "
            f"hvdrun. {_WHERE_TO_GO}"
        )

    return types.SimpleNamespace(
        initialize=initialize,
        list_devices=list_devices,
        get_device_count=get_device_count,
        num_processes=_size,
        process_id=lambda: basics.rank() if basics.is_initialized() else 0,
        distribute_tensor=same,
        distribute_variable=same,
        distribute_data_input=same,
        _to_backend_mesh=refuse,
        _to_backend_layout=refuse,
    )


def _size() -> int:
    return basics.size() if basics.is_initialized() else 1
