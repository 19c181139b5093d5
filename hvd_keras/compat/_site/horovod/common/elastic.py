"""`horovod.common.elastic`."""

from collections.abc import Callable
from typing import Any

from hvd_keras._common.ignored import ignoring
from hvd_keras.compat.elastic import ObjectState as ObjectState
from hvd_keras.compat.elastic import State as State
from hvd_keras.compat.elastic import run as _run


@ignoring("horovod.common.elastic.run_fn", "reset")
def run_fn(
    func: Callable[..., Any], reset: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Decorates a training function. `reset` has no effect."""
    return _run(func)
