"""Makes functions that pass Horovod's arguments on to our functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hvd_keras._common.autograph import as_it_is
from hvd_keras.compression import Compression
from hvd_keras.process_set import global_process_set
from hvd_keras.reduce_op import Average

# The defaults of Horovod's parameters. Parameters that are not here have none.
_DEFAULTS: dict[str, Any] = {
    "average": None,
    "average_aggregated_gradients": False,
    "backward_passes_per_step": 1,
    "compression": Compression.none,
    "device_dense": "",
    "device_sparse": "",
    "gradient_predivide_factor": 1.0,
    "groups": None,
    "ignore_name_scope": False,
    "local_layers": None,
    "name": None,
    "num_groups": 0,
    "op": Average,
    "postscale_factor": 1.0,
    "prescale_factor": 1.0,
    "process_set": global_process_set,
    "scale_local_gradients": True,
    "session": None,
    "sparse_as_dense": False,
    "splits": None,
}

Function = Callable[..., Any]


def forwarding(
    target: Function,
    parameters: str,
    *,
    call: Callable[[Function, dict[str, Any]], Any] | None = None,
    doc: str = "",
    name: str = "",
    **defaults: Any,
) -> Function:
    """Returns a function with Horovod's parameters that calls ours.

    Args:
        target: Our function; its parameters have Horovod's names.
        parameters: The parameters of Horovod's function, in its order.
        call: Calls the target with the arguments, given by name; it may change
            them. None: call it directly.
        doc: The docstring. Defaults to one that names our function.
        name: The name. Defaults to that of `target`.
        **defaults: Defaults of this function that differ from `_DEFAULTS`.
    """
    names = parameters.split()
    known = {**_DEFAULTS, **defaults}
    arguments = ", ".join(f"{each}={each}" for each in names)
    body = f"_target({arguments})"
    if call is not None:
        body = f"_call(_target, dict({arguments}))"
    shown = ", ".join(
        f"{each}=_defaults[{each!r}]" if each in known else each
        for each in names
    )
    own_name = name or target.__name__
    # Make a function with exactly these parameters, as dataclasses do. One that
    # takes any arguments and sorts them would need 5 us more for each call.
    namespace = {
        "__name__": sys._getframe(1).f_globals["__name__"],
        "_call": call,
        "_defaults": known,
        "_target": target,
    }
    exec(f"def {own_name}({shown}):\n    return {body}\n", namespace)
    forward: Any = namespace[own_name]
    forward.__doc__ = doc or (
        f"`hvd_keras.{own_name}`, with Horovod's arguments."
    )
    return as_it_is(forward)
