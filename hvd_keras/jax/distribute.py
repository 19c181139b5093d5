"""Makes an optimizer of optax reduce gradients over the ranks."""

from __future__ import annotations

from typing import Any, TypeVar

from hvd_keras._common import training_signs
from hvd_keras.compression import Compression, Compressor, to_compressor
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax._start import FirstValues
from hvd_keras.jax.allreduce import allreduce
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp

Transformation = TypeVar("Transformation", bound=Any)


def distribute(
    optimizer: Transformation,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Transformation:
    """Returns an optimizer that reduces gradients before it uses them.

    Its `update` reduces all gradients in one call, and works within `jax.jit`.
    The state is that of `optimizer`. To add up the gradients of several steps
    first, wrap it: `optax.MultiSteps(hvd_keras.jax.distribute(...), 4)`.

    Args:
        optimizer: A gradient transformation of optax: a named tuple with `init`
            and `update`.
        op: How the ranks' gradients combine.
        name: Pairs the reduction across ranks. Without one it is counted: see
            `hvd_keras.jax`.
        compression: In which form gradients travel.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A gradient transformation of the type of `optimizer`.

    Raises:
        InvalidArgumentError: `optimizer` is not a gradient transformation.

    Example:

    >>> optimizer = hvd_keras.jax.distribute(optax.adam(1e-3))
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(gradients, state, params)
    """
    compression = to_compressor(compression)
    update = getattr(optimizer, "update", None)
    if update is None or not hasattr(optimizer, "_replace"):
        raise InvalidArgumentError(
            "`optimizer` must be a gradient transformation of optax. Received: "
            f"{type(optimizer).__name__}."
        )
    training_signs.has_transform = True

    first = FirstValues(process_set)

    def beginning(params: Any) -> Any:
        first.note(params)
        return optimizer.init(params)

    def reducing(gradients: Any, *args: Any, **kwargs: Any) -> Any:
        first.compare(gradients)
        reduced = allreduce(
            gradients,
            op,
            name=name,
            compression=compression,
            process_set=process_set,
        )
        return update(reduced, *args, **kwargs)

    distributed: Transformation = optimizer._replace(
        init=beginning, update=reducing
    )
    return distributed
