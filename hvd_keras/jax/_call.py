"""The one function that every collective on JAX arrays goes through."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._common.dtypes import check_dtype
from hvd_keras._common.error_text import error_in
from hvd_keras._common.replacements import replace
from hvd_keras._job import exit_hooks
from hvd_keras._values import calls, refusals
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax.errors import typed_errors
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, ReduceOp, Sum

_KINDS = ("allreduce", "reducescatter", "broadcast", "allgather", "alltoall")
LINEAR = (Average, Sum)


def call(
    kind: str,
    arrays: Sequence[Any],
    *,
    name: str,
    process_set_id: int,
    shapes: Sequence[Sequence[int]] | None = None,
    token: Any = None,
    **attributes: Any,
) -> list[jax.Array]:
    """Runs a collective, or adds it to the program that is being traced.

    XLA may let a computation wait for a call in order to reuse the call's
    memory. The order of such waits depends on the program. So if the ranks'
    programs may differ, chain their independent calls with tokens, in the same
    order on all ranks: see tf_ops/xla/handlers.h.

    Args:
        kind: One of `_KINDS`.
        arrays: One array, or the members of a group.
        name: Pairs the call across ranks.
        process_set_id: The set that runs it.
        shapes: Shapes of the results in a program. Defaults to those of the
            arrays.
        token: An int32 scalar: the last result of the previous call in a chain.
            Then the last result of this call is the token for the next one.
        attributes: The attributes of the handler (tf_ops/xla/handlers.h). Only
            `together` may use the results of calls with `has_together`.

    Raises:
        InvalidArgumentError: The collective does not take the dtype of an
            array.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    for array in arrays:
        check_dtype(str(array.dtype), kind, name)
    refusals.submit()
    if not is_traced(arrays):
        results = _run(kind, arrays, name, process_set_id, **attributes)
        return results if token is None else [*results, token]
    _register()
    if shapes is None:
        shapes = [array.shape for array in arrays]
    in_place = kind in ("allreduce", "broadcast")
    is_adasum = attributes.get("reduce_op") == ReduceOp.Adasum
    aliases = {i: i for i in range(len(arrays))} if in_place else {}
    if token is not None:
        aliases[len(arrays)] = len(arrays)
        arrays, shapes = [*arrays, token], [*shapes, ()]
        attributes["has_token"] = 1
    function = jax.ffi.ffi_call(
        f"hvd_{kind}",
        [
            jax.ShapeDtypeStruct(tuple(shape), array.dtype)
            for shape, array in zip(shapes, arrays, strict=True)
        ],
        has_side_effect=True,
        # One call for the whole batch if its elements do not mix.
        vmap_method="broadcast_all"
        if in_place and token is None and not is_adasum
        else "sequential",
        input_output_aliases=aliases,
    )
    types = {int: np.int32, float: np.float64}
    with jax.named_scope(f"Horovod{kind.capitalize()}:{name}"):
        results = function(
            *arrays,
            name=name,
            process_set_id=np.int32(process_set_id),
            **{key: types[type(v)](v) for key, v in attributes.items()},
        )
    return list(results)


def together(arrays: Sequence[Any]) -> list[Any]:
    """Ends traced calls that have `has_together`; returns their results.

    On GPUs, these calls only start before that.
    """
    if not is_traced(arrays):
        return list(arrays)
    _register()
    function = jax.ffi.ffi_call(
        "hvd_together",
        [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays],
        has_side_effect=True,
        vmap_method="sequential",
        input_output_aliases={i: i for i in range(len(arrays))},
    )
    return list(function(*arrays))


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether one of `arrays` belongs to a program that is being traced."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def end_programs(kind: str) -> None:
    """Waits for the programs that this rank has started.

    Args:
        kind: The call that may not be part of a program.

    Raises:
        InvalidArgumentError: A program is being traced.
        HvdError: A collective of a program failed.
    """
    if is_traced([jnp.zeros(())]):
        raise InvalidArgumentError(
            f"`{kind}` must be called outside of `jax.jit`. Received: a call "
            "while a program is traced."
        )
    with typed_errors():
        jax.effects_barrier()


def program_of(array: Any) -> Any:
    """Returns the object of JAX that stands for the program being traced.

    All tracers of one program have the same, also inside of transformations,
    loops and branches. It is None outside of programs.
    """
    program = None
    trace = getattr(array, "_trace", None)
    while trace is not None:
        if hasattr(trace, "frame"):  # it makes a program
            program = trace
        trace = getattr(trace, "parent_trace", None)
    return program


def checked_name(
    kind: str, name: str | None, arrays: Any, process_set: ProcessSet
) -> str:
    """Returns the name of a call; counts those without one.

    Raises:
        InvalidArgumentError: `name` or `process_set` cannot be used.
    """
    is_in_program = is_traced(jax.tree.leaves(arrays))
    where = "program" if is_in_program else "call"
    return calls.checked_name(
        f"jax.{kind}.{where}",
        kind,
        name,
        process_set,
        is_in_program=is_in_program,
    )


def refuse_gradient(kind: str, name: str, op: int) -> None:
    """Raises NotImplementedError unless `op` has a gradient here."""
    if op not in LINEAR:
        raise NotImplementedError(
            f"`{kind}` must be a Sum or an Average to be differentiated. "
            f"Received: op={ReduceOp(op).name} ({name!r})."
        )


def is_floating(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


@functools.cache
def _register() -> None:
    library = _native.xla()
    atexit.register(_end_quietly)
    # Even with GPUs, some programs may run on the CPU.
    platforms = {"cpu": "HvdFfi"}
    if jax.default_backend() == "gpu":
        platforms["CUDA"] = "HvdFfiGpu"
    for platform, prefix in platforms.items():
        for kind in (*_KINDS, "together"):
            handler = getattr(library, f"{prefix}{kind.capitalize()}")
            jax.ffi.register_ffi_target(
                f"hvd_{kind}", jax.ffi.pycapsule(handler), platform=platform
            )


def _end_quietly() -> None:
    """Waits for what runs yet, before JAX waits in a job that has ended.

    JAX keeps private tokens of calls with side effects until the process ends,
    and prints the errors of those that fail; somebody has got these before.
    """
    # Of a process that fails, a peer may never come.
    if not hasattr(sys, "last_value") and not exit_hooks.exit_call():
        try:
            jax.effects_barrier()
        except Exception as error:
            log.warning(f"A program failed: {error_in(str(error)) or error}")
    with contextlib.suppress(Exception):
        importlib.import_module("jax._src.dispatch").runtime_tokens.clear()


def _allow_in_checkpoint() -> None:
    """Lets `jax.checkpoint` take our calls.

    It refuses calls with side effects unless their type is in a list. For these
    it keeps the results and does not call again. The list holds for the whole
    process. It also lets in the calls `jax.ffi.ffi_call(has_side_effect=True)`
    of other packages, which have the same type.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import effects, ffi

        def with_ours(allowed: Any) -> Any:
            allowed.add_type(ffi.FfiEffect)
            return allowed

        replace(effects, "remat_allowed_effects", with_ours)


_allow_in_checkpoint()


def _run(
    kind: str,
    arrays: Sequence[jax.Array],
    name: str,
    process_set_id: int,
    **attributes: Any,
) -> list[jax.Array]:
    """Runs a collective now, on host memory."""
    members = [np.asarray(array) for array in arrays]
    core = _native.core()
    if kind == "alltoall":
        result, _ = core.alltoall(name, members[0], None, process_set_id)
        results = [result]
    elif kind in ("allreduce", "reducescatter"):
        function = getattr(core, kind)
        op, prescale, postscale = (
            attributes[key] for key in ("reduce_op", "prescale", "postscale")
        )
        options = {}
        if kind == "allreduce":
            options["wire_format"] = attributes.get("wire_format", 0)
        results = function(
            name, members, op, prescale, postscale, process_set_id, **options
        )
    elif kind == "broadcast":
        root_rank = attributes["root_rank"]
        results = core.broadcast(name, members, root_rank, process_set_id)
    else:
        results = core.allgather(name, members, process_set_id)
    return [jnp.asarray(result) for result in results]
