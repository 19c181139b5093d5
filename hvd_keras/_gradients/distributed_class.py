"""The class that a distributed optimizer has, and how to tell one."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from hvd_keras import _backends
from hvd_keras._backends.options import ReduceOptions, VariableGroups, path_of
from hvd_keras._gradients.local_variables import LocalVariables
from hvd_keras._gradients.reducer import GradientReducer, refuse_reduced_twice
from hvd_keras._keras import names as private

_logger = logging.getLogger(__name__)


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or one that it wraps, reduces over the ranks."""
    return _distributed_part(optimizer) is not None


def local_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that were registered as local with `optimizer`."""
    inner = unwrapped(optimizer)
    return list(inner.hvd_local) if isinstance(inner, Distributed) else []


def reduces_over_ranks(model: Any) -> bool:
    """Whether the gradients of `model` are reduced, or may be, after `init`."""
    part = _distributed_part(getattr(model, "optimizer", None))
    return part is not None and part.hvd_settings.reduce.process_set.size() != 1


def must_not_use_xla(model: Any) -> bool:
    """Whether XLA cannot compile training of `model`; warns once if so."""
    problem = _backends.current().xla_problem()
    if problem is None or not reduces_over_ranks(model):
        return False
    _warn_about_xla(problem)
    return True


@functools.cache
def _warn_about_xla(problem: str) -> None:
    _logger.warning(
        "Models with a distributed optimizer are compiled without XLA "
        "(`jit_compile=False`): %s.",
        problem,
    )


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`, or itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_multi_optimizer(optimizer: Any) -> bool:
    # Newer than the oldest Keras that we support.
    multi_optimizer = getattr(keras.optimizers, "MultiOptimizer", ())
    return isinstance(optimizer, multi_optimizer)


def _distributed_part(optimizer: Any) -> Distributed | None:
    """Returns the first distributed optimizer in `optimizer`."""
    inner = unwrapped(optimizer)
    parts = inner.optimizers if is_multi_optimizer(inner) else [inner]
    return next((o for o in parts if isinstance(o, Distributed)), None)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of DistributedOptimizer that a reduction depends on."""

    name: str | None
    average_aggregated_gradients: bool
    schedule_counts_batches: bool
    reduce: ReduceOptions


class Distributed(private.ReducingOptimizer):
    """Mixin in front of the class of an optimizer."""

    hvd_settings: ClassVar[Settings]
    hvd_base: ClassVar[type]
    name: str
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
            self._check_variables()
            reducer = GradientReducer(self.hvd_name, self.hvd_settings.reduce)
            state["_hvd_reducer"] = reducer
        if variables is None:  # `_clip_gradients` was called by hand
            variables = gradients
        places = {
            private.identity_of(variable): index
            for index, variable in enumerate(
                private.trainable_variables_of(self)
            )
        }
        indices = [
            places.get(private.identity_of(variable), index)
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

    def _check_variables(self) -> None:
        groups = self.hvd_settings.reduce.groups
        named = {
            "register_local_var": self.hvd_local.registered,
            "groups": groups if isinstance(groups, VariableGroups) else (),
        }
        known = {
            private.identity_of(variable)
            for variable in private.trainable_variables_of(self)
        }
        for where, variables in named.items():
            for variable in variables:
                if known and private.identity_of(variable) not in known:
                    raise ValueError(
                        f"Variables of `{where}` must be among those that the "
                        f"optimizer trains. Received: {path_of(variable)!r}, "
                        f"which is none of the {len(known)} of optimizer "
                        f"{self.hvd_name!r}."
                    )

    def __reduce__(self) -> Any:
        # A pickle names the plain class: it loads without hvd_keras.
        reduced: Any = super().__reduce__()
        return (private.unpickler_of(self.hvd_base), *reduced[1:])

    def __copy__(self) -> Any:
        # Of a plain optimizer too, a copy has variables of its own.
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A copy in the same process stays distributed.
        function, arguments = self.__reduce__()
        plain = function(*copy.deepcopy(arguments, memo))
        plain.__class__ = type(self)
        vars(plain)["_hvd_local"] = self.hvd_local
        memo[id(self)] = plain
        return plain


_num_named: collections.Counter[str] = collections.Counter()
_classes: dict[tuple[type, Settings], type] = {}


def distributed_class(base: type, settings: Settings) -> type:
    """Returns the subclass of `base` that reduces; always the same one."""
    if (base, settings) in _classes:
        return _classes[base, settings]
    subclass = type(
        base.__name__,
        (Distributed, base),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "hvd_settings": settings,
            "hvd_base": base,
            "hvd_schedule_counts_batches": settings.schedule_counts_batches,
        },
    )
    private.share_saved_name(subclass, base)
    _classes[base, settings] = subclass
    return subclass


def check_finite_on_all_ranks(
    optimizer: keras.optimizers.LossScaleOptimizer, grads: Any, check: Any
) -> Any:
    """Whether the gradients are finite on every rank.

    Ranks that answered differently would apply, skip and rescale apart, and
    pair a reduction of one step with that of another.
    """
    finite = check(optimizer, grads)
    inner = _distributed_part(optimizer)
    if inner is None:
        return finite
    refuse_reduced_twice(grads, inner.hvd_name)
    process_set = inner.hvd_settings.reduce.process_set
    if not process_set.included():
        return finite
    backend = _backends.current()
    if process_set.size() == 1 and backend.skips_alone:
        return finite
    name = f"{inner.hvd_name}/check_finite"
    return backend.all_true(finite, name, process_set)
