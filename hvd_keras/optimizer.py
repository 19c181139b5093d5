"""Keras optimizers that reduce gradients over the ranks."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvd_keras import _keras_private as private
from hvd_keras._gradients import (
    GradientReducer,
    refuse_reduced_twice,
    refuse_xla,
)
from hvd_keras._local_variables import LocalVariables
from hvd_keras._reduce_options import ReduceOptions, path_of
from hvd_keras.compression import Compression, Compressor
from hvd_keras.ops import allreduce
from hvd_keras.ops.reduce_op import Average, Min, ReduceOp
from hvd_keras.process_set import ProcessSet, global_process_set


def DistributedOptimizer(  # noqa: N802 (the name that Horovod gave it)
    optimizer: keras.optimizers.Optimizer,
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = True,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    num_groups: int = 0,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    device_dense: str = "",
    device_sparse: str = "",
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` reduce its gradients over all ranks.

    The optimizer itself is changed and returned: its class becomes a subclass
    that averages gradients over the ranks before it clips and applies them.
    Its state, its learning rate and `isinstance` stay as they were, and a
    model that is saved with it loads where hvd_keras is not installed, with
    the plain optimizer; `hvd.load_model` loads and distributes it again.

    With N ranks on shares of the same batch, the weights become those of one
    process on the whole batch. Mixed precision works: whether a step with
    loss scaling is skipped is decided for all ranks together.

    `optimizer.register_local_var(variable)`, before training, keeps the
    gradient of a variable on its rank.

    Args:
        optimizer: A Keras 3 optimizer; of a `LossScaleOptimizer`, the inner
            optimizer is changed.
        name: First part of the names that pair reductions across ranks.
            Defaults to `optimizer.name`, which must be equal on all ranks.
        op: `Average`, `Sum`, or `Adasum`, which adds gradients that point in
            different directions and averages those that agree.
        compression: What gradients travel as: `Compression.none`, `fp16` or
            `bf16`.
        sparse_as_dense: Whether gradients of embeddings are made dense before
            they are reduced, instead of gathered from all ranks. Optimizers
            with slots then also update rows that no batch has used.
        backward_passes_per_step: Batches whose gradients are accumulated
            before they are reduced and applied, by Keras's own
            `gradient_accumulation_steps`. A learning rate schedule and the
            moving average of weights (`use_ema`) advance with each batch.
        average_aggregated_gradients: Whether accumulated gradients are
            averaged over the batches, as in Keras, or summed.
        gradient_predivide_factor: Divides gradients before the sum over the
            ranks; their average is then multiplied by it. Keeps float16 sums
            in range.
        groups: Which gradients are reduced as one: a number of groups, or
            lists of variables, of which unlisted ones are reduced singly.
            None: as many as HVD_BUCKET_BYTES holds.
        num_groups: Old name of `groups`, where that is a number; 0: none.
        process_set: Ranks that reduce together. Ranks outside of it train
            with gradients of their own.
        scale_local_gradients: Whether gradients of local variables are divided
            by the size of the process set, as averaged ones are.
        device_dense: Device of the reductions of dense gradients; "": where
            TensorFlow places them.
        device_sparse: The same for gradients of embeddings.

    Returns:
        `optimizer`. A second call with the same arguments changes nothing.

    Raises:
        TypeError: `optimizer` is no Keras 3 optimizer, or another argument is
            of a wrong type.
        ValueError: Arguments cannot be honoured; the optimizer is built, or
            accumulates already, and `backward_passes_per_step` says otherwise;
            or it was made distributed with other arguments.

    Example:

    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    >>> model.compile(optimizer, loss="mse")
    """
    options = ReduceOptions.checked(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        num_groups=num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a Keras 3 optimizer, from "
            "`keras.optimizers`. Received: "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}."
        )
    inner = unwrapped(optimizer)
    settings = _Settings(
        name=name,
        average_aggregated_gradients=average_aggregated_gradients,
        reduce=options,
    )
    if is_distributed(inner) and inner.hvd_settings != settings:
        raise ValueError(
            "An optimizer must be made distributed once. Received: "
            f"{inner.name!r}, which is distributed with "
            f"{inner.hvd_settings}, and now {settings}."
        )
    _set_accumulation(inner, backward_passes_per_step)
    if not is_distributed(inner):
        inner.__class__ = _distributed_class(type(inner), settings)
    private.patch_check_finite(_check_finite_on_all_ranks)
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: keras.optimizers.Optimizer,
    *,
    local_layers: Any = None,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` reduce all gradients but those of `local_layers`.

    Args:
        optimizer: As in `DistributedOptimizer`.
        local_layers: A Keras layer, or a list of them, that each rank trains
            by itself. They may be built later.
        **options: As in `DistributedOptimizer`.

    Returns:
        `optimizer`.

    Raises:
        ValueError: `local_layers` holds something else; or as in
            `DistributedOptimizer`.

    Example:

    >>> optimizer = hvd.PartialDistributedOptimizer(
    ...     keras.optimizers.SGD(0.1), local_layers=model.layers[0]
    ... )
    """
    local = LocalVariables()
    local.add_layers(local_layers)
    DistributedOptimizer(optimizer, **options)
    unwrapped(optimizer).hvd_local.add_layers(local_layers)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or what it wraps, reduces over the ranks."""
    return isinstance(unwrapped(optimizer), _Distributed)


def local_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that were registered as local with `optimizer`."""
    inner = unwrapped(optimizer)
    return list(inner.hvd_local) if is_distributed(inner) else []


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`, or itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The arguments of DistributedOptimizer that a reduction depends on."""

    name: str | None
    average_aggregated_gradients: bool
    reduce: ReduceOptions


class _Distributed(private.ReducingOptimizer):
    """Mixin in front of the class of an optimizer."""

    hvd_settings: ClassVar[_Settings]
    hvd_base: ClassVar[type]
    name: str
    gradient_accumulation_steps: int | None
    global_clipnorm: float | None

    @property
    def hvd_name(self) -> str:
        """First part of the names of this optimizer's collectives."""
        state = vars(self)
        if "_hvd_name" not in state:
            name = self.hvd_settings.name or self.name
            _num_named[name] += 1
            number = _num_named[name]
            state["_hvd_name"] = name if number == 1 else f"{name}#{number}"
        return str(state["_hvd_name"])

    @property
    def hvd_local(self) -> LocalVariables:
        """The variables whose gradients stay on this rank."""
        local: LocalVariables = vars(self).setdefault(
            "_hvd_local", LocalVariables()
        )
        return local

    def register_local_var(self, variable: Any) -> None:
        """Keeps the gradient of `variable` on this rank.

        All ranks register the same variables, before the first step.

        Raises:
            ValueError: The optimizer has reduced gradients already.
        """
        if "_hvd_reducer" in vars(self):
            raise ValueError(
                "A local variable must be registered before the first step: "
                "a step that is traced does not change any more. Received: "
                f"{path_of(variable)!r} for optimizer {self.hvd_name!r}."
            )
        self.hvd_local.add(variable)

    def hvd_begin_apply(self, gradients: Any) -> None:
        vars(self)["_hvd_num_reductions"] = 0
        refuse_reduced_twice(gradients, self.hvd_name)

    def hvd_end_apply(self, variables: Sequence[Any]) -> None:
        if (
            vars(self).pop("_hvd_num_reductions", 0)
            or self.gradient_accumulation_steps
            or any(
                getattr(variable, "overwrite_with_gradient", False)
                for variable in variables
            )
        ):
            return
        raise TypeError(
            "A distributed optimizer must pass its gradients through "
            "Keras's `_clip_gradients`, where they are reduced. Received: "
            f"{self.hvd_base.__module__}.{self.hvd_base.__qualname__}, whose "
            "`apply` does not, so that ranks would train apart."
        )

    def hvd_reduce(
        self, gradients: list[Any], variables: list[Any] | None
    ) -> list[Any]:
        if not gradients:
            return gradients
        state = vars(self)
        state["_hvd_num_reductions"] = state.get("_hvd_num_reductions", 0) + 1
        reducer = state.get("_hvd_reducer")
        if reducer is None:
            self._check_clipping()
            reducer = GradientReducer(self.hvd_name, self.hvd_settings.reduce)
            state["_hvd_reducer"] = reducer
        if variables is None:  # `_clip_gradients` was called by hand
            variables = gradients
        places = {
            id(variable): index
            for index, variable in enumerate(
                private.trainable_variables_of(self)
            )
        }
        indices = [
            places.get(id(variable), index)
            for index, variable in enumerate(variables)
        ]
        factor = 1.0
        if not self.hvd_settings.average_aggregated_gradients:
            factor = float(self.gradient_accumulation_steps or 1)
        reduced: list[Any] = reducer(
            gradients,
            variables,
            indices,
            factor=factor,
            local_ids=self.hvd_local.ids(),
        )
        return reduced

    def _check_clipping(self) -> None:
        size = self.hvd_settings.reduce.process_set.size() or 1
        if self.hvd_local and self.global_clipnorm and size > 1:
            raise ValueError(
                "`global_clipnorm` must be None where variables are local: "
                "the norm of all gradients differs by rank then, and would "
                "clip the shared ones apart. Received: global_clipnorm="
                f"{self.global_clipnorm} (optimizer {self.hvd_name!r}); use "
                "`clipnorm` or `clipvalue`."
            )

    def __reduce__(self) -> Any:
        # A pickle names the plain class: it loads without hvd_keras.
        reduced: Any = super().__reduce__()
        return (private.unpickler_of(self.hvd_base), *reduced[1:])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A copy in the same process stays distributed.
        function, arguments = self.__reduce__()
        plain = function(*copy.deepcopy(arguments, memo))
        plain.__class__ = type(self)
        vars(plain)["_hvd_local"] = self.hvd_local
        memo[id(self)] = plain
        return plain


_num_named: collections.Counter[str] = collections.Counter()
_classes: dict[tuple[type, _Settings], type] = {}


def _distributed_class(base: type, settings: _Settings) -> type:
    """Returns the subclass of `base` that reduces; always the same one."""
    if (base, settings) in _classes:
        return _classes[base, settings]
    subclass = type(
        base.__name__,
        (_Distributed, base),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "hvd_settings": settings,
            "hvd_base": base,
        },
    )
    private.share_saved_name(subclass, base)
    _classes[base, settings] = subclass
    return subclass


def _check_finite_on_all_ranks(
    optimizer: keras.optimizers.LossScaleOptimizer, grads: Any, check: Any
) -> Any:
    """Whether the gradients are finite on every rank.

    Ranks that answered differently would apply, skip and rescale apart, and
    pair a reduction of one step with that of another.
    """
    finite = check(optimizer, grads)
    inner = unwrapped(optimizer)
    if not isinstance(inner, _Distributed):
        return finite
    refuse_reduced_twice(grads, inner.hvd_name)
    process_set = inner.hvd_settings.reduce.process_set
    alone = refuse_xla("finiteness check", inner.hvd_name, process_set)
    if alone or not process_set.included():
        return finite
    everywhere = allreduce(
        tf.cast(finite, tf.int32),
        Min,
        name=f"{inner.hvd_name}/check_finite",
        process_set=process_set,
    )
    return tf.cast(everywhere, tf.bool)


def _set_accumulation(optimizer: Any, num_passes: int) -> None:
    if type(num_passes) is not int or num_passes < 1:
        raise ValueError(
            "`backward_passes_per_step` must be an integer >= 1. Received: "
            f"backward_passes_per_step={num_passes!r}."
        )
    current = optimizer.gradient_accumulation_steps
    if num_passes in (1, current):
        return
    if current:
        raise ValueError(
            "`backward_passes_per_step` must equal the optimizer's own "
            "`gradient_accumulation_steps`, or be left out. Received: "
            f"backward_passes_per_step={num_passes}, "
            f"gradient_accumulation_steps={current} (optimizer "
            f"{optimizer.name!r})."
        )
    if optimizer.built:
        raise ValueError(
            "`backward_passes_per_step` must be set before the optimizer is "
            "built, because accumulation needs variables of its own. "
            f"Received: backward_passes_per_step={num_passes} for "
            f"{optimizer.name!r}, which is built; give it "
            "`gradient_accumulation_steps` when it is made."
        )
    optimizer.gradient_accumulation_steps = num_passes
