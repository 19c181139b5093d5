"""`horovod.common.elastic`."""

from collections.abc import Callable
from typing import Any

from hvd_keras.compat.elastic import ObjectState as ObjectState
from hvd_keras.compat.elastic import State as State
from hvd_keras.compat.elastic import run as _run


def run_fn(
    func: Callable[..., Any], reset: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Decorates a training function. `reset` is ignored: hvd_keras joins."""
    return _run(func)
