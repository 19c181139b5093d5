"""What a distributed optimizer adds to its base class."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras

from hvd_keras import _backends
from hvd_keras._backends.options import ReduceOptions, VariableGroups, path_of
from hvd_keras._gradients.local_updates import LocalUpdates
from hvd_keras._gradients.local_variables import LocalVariables
from hvd_keras._gradients.nonfinite import NonfiniteWatch
from hvd_keras._gradients.optimizer_names import label_of
from hvd_keras._gradients.reducer import (
    GradientReducer,
    refuse_reduced_twice,
    weighted,
)
from hvd_keras._gradients.start_check import StartCheck
from hvd_keras._job import state
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import names as private
from hvd_keras._keras.optimizer import OptimizerHooks
from hvd_keras.process_set import ProcessSet


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of DistributedOptimizer that a reduction depends on."""

    name: str | None = None
    average_aggregated_gradients: bool = True
    schedule_counts_batches: bool = False
    # 1: as many as the optimizer had before it was made distributed.
    backward_passes_per_step: int = 1
    local_updates: LocalUpdates | None = None
    reduce: ReduceOptions = dataclasses.field(default_factory=ReduceOptions)


class _Config(dict[str, Any]):
    """The config from `get_config`; it carries the settings to `from_config`.

    In a file, a pickle or a copy it is a plain dict without them.
    """

    def __init__(self, config: dict[str, Any], settings: Settings) -> None:
        super().__init__(config)
        self.settings = settings

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))


class ReducingOptimizer(OptimizerHooks):
    """Mixin that comes before the class of an optimizer.

    While it accumulates gradients, Keras advances the average of the weights
    and the schedule with every batch. Here they advance with every update, as
    if the accumulated batches were one.
    """

    hvd_base: ClassVar[type]
    name: str
    variables: list[Any]
    global_clipnorm: float | None
    gradient_accumulation_steps: int | None

    # State goes directly into `vars(self)`: Keras and TensorFlow track what
    # `__setattr__` sets.

    @property
    def hvd_settings(self) -> Settings:
        """The settings; the defaults if `hvd_distribute` was not called."""
        settings: Settings = vars(self).setdefault("_hvd_settings", Settings())
        return settings

    @property
    def hvd_local(self) -> LocalVariables:
        """The variables whose gradients stay on this rank."""
        local: LocalVariables = vars(self).setdefault(
            "_hvd_local", LocalVariables()
        )
        return local

    @property
    def hvd_reducer(self) -> GradientReducer:
        own = vars(self)
        if "_hvd_reducer" not in own:
            settings = self.hvd_settings
            label = settings.name or label_of(self.name, self.hvd_base)
            options = dataclasses.replace(
                settings.reduce, process_set=self.hvd_step_set
            )
            own["_hvd_reducer"] = GradientReducer(label, options)
        reducer: GradientReducer = own["_hvd_reducer"]
        return reducer

    @property
    def hvd_step_set(self) -> ProcessSet:
        """The ranks that reduce gradients together in each step."""
        process_set: ProcessSet = vars(self).get(
            "_hvd_step_set", self.hvd_settings.reduce.process_set
        )
        return process_set

    @property
    def hvd_row_set(self) -> ProcessSet:
        """The ranks that ask each other in each step what rows they have."""
        updates = self.hvd_settings.local_updates
        if updates is not None and updates.every == 1:
            return self.hvd_settings.reduce.process_set
        return self.hvd_step_set

    def hvd_train_within(self, process_set: ProcessSet) -> None:
        """Reduces gradients over some ranks from the next trace on."""
        if process_set is not self.hvd_step_set:
            vars(self)["_hvd_step_set"] = process_set
            vars(self).pop("_hvd_reducer", None)

    def hvd_note_apart(self, is_apart: bool) -> None:
        """Notes whether its slots differ between the hosts."""
        vars(self)["_hvd_apart_in"] = state.generation() if is_apart else None

    @property
    def hvd_is_apart(self) -> bool:
        """Whether its slots differ; a new generation makes them equal."""
        generation = vars(self).get("_hvd_apart_in")
        return generation is not None and generation == state.generation()

    @property
    def hvd_start_check(self) -> StartCheck:
        """Compares the ranks before the first step."""
        check: StartCheck = vars(self).setdefault("_hvd_start", StartCheck())
        return check

    def hvd_distribute(self, settings: Settings) -> None:
        """Takes new settings. Equal ones count if the set was registered anew.

        Equal settings may hold a process set that now has another id.
        """
        own = vars(self)
        old = own.get("_hvd_settings")
        new_id = settings.reduce.process_set.process_set_id
        if old != settings or old.reduce.process_set.process_set_id != new_id:
            own["_hvd_settings"] = settings
            own.pop("_hvd_reducer", None)

    def register_local_var(self, variable: Any) -> None:
        """Keeps the gradient of `variable` on this rank.

        All ranks register the same variables, before the first step.

        Raises:
            ValueError: The optimizer has reduced gradients already.
        """
        if "_hvd_is_checked" in vars(self):
            raise ValueError(
                "A local variable must be registered before the first step, "
                "because a traced step cannot change. Received: "
                f"{path_of(variable)!r} for optimizer {self.name!r}."
            )
        self.hvd_local.add(variable)

    # ---- A step ----

    def apply_gradients(
        self, grads_and_vars: Any, *args: Any, **kw: Any
    ) -> Any:
        if self._is_own("apply_gradients"):
            grads, variables = map(list, zip(*grads_and_vars, strict=True))
            vars(self)["_hvd_num_reductions"] = 0
            refuse_reduced_twice(grads, self.name)
            grads = self._reduced_early(grads, variables)
            grads_and_vars = list(zip(grads, variables, strict=True))
        try:
            return super().apply_gradients(grads_and_vars, *args, **kw)  # type: ignore[misc]
        finally:
            vars(self).pop("_hvd_is_early", None)

    def apply(
        self, grads: Any, trainable_variables: Sequence[Any] | None = None
    ) -> None:
        grads = list(grads)
        is_inner = "_hvd_is_early" in vars(self)
        vars(self).pop("_hvd_num_losses", None)
        if not is_inner:
            vars(self)["_hvd_num_reductions"] = 0
            refuse_reduced_twice(grads, self.name)
            if self._is_own("apply"):
                grads = self._reduced_early(grads, trainable_variables)
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            vars(self).pop("_hvd_next_scale", None)
            if not is_inner:
                vars(self).pop("_hvd_is_early", None)
        if len(grads):
            self._check_reduced(
                trainable_variables or private.trainable_variables_of(self)
            )

    def _is_own(self, method: str) -> bool:
        """Whether the class of a user has a method instead of Keras's.

        It may change gradients, which have to be those of all ranks then.
        """
        home = getattr(self.hvd_base, method).__module__
        return not home.startswith("keras.")

    def _reduced_early(
        self, grads: list[Any], trainable_variables: Sequence[Any] | None
    ) -> list[Any]:
        """Returns the gradients as they are to be clipped; reduces them now."""
        variables = list(
            trainable_variables or private.trainable_variables_of(self)
        )
        places = [
            place
            for place, (gradient, variable) in enumerate(
                zip(grads, variables, strict=True)
            )
            if gradient is not None
            and not getattr(variable, "overwrite_with_gradient", False)
        ]
        reduced = _backends.current().reduce_if(
            None,
            functools.partial(
                self._reduced, variables=[variables[p] for p in places]
            ),
            self.hvd_weighted([grads[place] for place in places]),
        )
        for place, gradient in zip(places, reduced, strict=True):
            grads[place] = gradient
        vars(self)["_hvd_is_early"] = True
        return grads

    def hvd_weighted(self, gradients: list[Any]) -> list[Any]:
        if "_hvd_is_early" in vars(self):
            return gradients
        return weighted(gradients, self.hvd_row_set)

    def hvd_reduce(
        self, gradients: list[Any], variables: list[Any] | None
    ) -> list[Any]:
        if "_hvd_is_early" in vars(self):
            return gradients
        backend = _backends.current()
        may_wait = self.gradient_accumulation_steps and backend.clips_each_batch
        return backend.reduce_if(
            self._is_update() if may_wait else None,
            functools.partial(self._reduced, variables=variables),
            gradients,
        )

    def _reduced(
        self, gradients: list[Any], variables: list[Any] | None
    ) -> list[Any]:
        if not gradients:
            return gradients
        if self.hvd_settings.local_updates and not keras_calls.is_in_fit():
            raise ValueError(
                "`local_updates` works in `fit`, where the ranks meet. "
                f"Received: a step of optimizer {self.name!r} outside of it. "
                "Leave `local_updates` out, or train by `fit`."
            )
        own = vars(self)
        own["_hvd_num_reductions"] = own.get("_hvd_num_reductions", 0) + 1
        if "_hvd_is_checked" not in own:
            self._check_clipping()
            self._check_variables()
            own["_hvd_is_checked"] = True
        trained = variables or []
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
        factor = vars(self).get("_hvd_next_scale", 1.0)
        if not self.hvd_settings.average_aggregated_gradients:
            factor *= float(self.gradient_accumulation_steps or 1)
        reduced = self.hvd_reducer(
            gradients,
            variables,
            indices,
            factor=factor,
            local_ids=self.hvd_local.ids(),
        )
        # Now the ranks know that they have gradients of the same variables.
        if trained:
            self._check_start(trained)
        return reduced

    def hvd_next_loss(self) -> int:
        """Returns how many losses were computed before this one in the step.

        A step that failed in an earlier generation does not count.
        """
        number, generation = vars(self).get("_hvd_num_losses", (0, None))
        number = number if generation == state.generation() else 0
        vars(self)["_hvd_num_losses"] = number + 1, state.generation()
        return number

    def hvd_scale_next(self, factor: float) -> None:
        """Multiplies the gradients of this step by `factor`."""
        vars(self)["_hvd_next_scale"] = factor

    @property
    def hvd_watch(self) -> NonfiniteWatch | None:
        """Looks for gradients that are not finite, if a callback wants it."""
        watch: NonfiniteWatch | None = vars(self).get("_hvd_watch")
        return watch

    def hvd_set_watch(self, is_on: bool) -> None:
        """Begins or ends to look. Steps that were traced do not notice."""
        process_set = self.hvd_settings.reduce.process_set
        if is_on and self.hvd_settings.local_updates:
            raise ValueError(
                "`ConsistencyCheck` must have `nonfinite='ignore'` with "
                "`local_updates`: hosts do not wait for each other in a step. "
                "Use `keras.callbacks.TerminateOnNaN` and "
                "`hvd.callbacks.SyncEarlyStopping`."
            )
        vars(self).pop("_hvd_watch", None)
        if is_on and process_set.included():
            vars(self)["_hvd_watch"] = NonfiniteWatch(
                self.hvd_reducer.name(), process_set
            )

    def hvd_apply_if_finite(
        self,
        gradients: list[Any],
        variables: list[Any],
        apply: Callable[[], None],
    ) -> None:
        if self.hvd_watch is None:
            apply()
            return
        is_finite = self.hvd_watch.all_finite(gradients)
        _backends.current().call_if(
            is_finite, apply, [*variables, *self.variables]
        )

    def hvd_new_values(
        self, values: list[Any], variables: list[Any]
    ) -> list[Any]:
        local_ids = self.hvd_local.ids()
        shared = [
            place
            for place, variable in enumerate(variables)
            if private.identity_of(variable) not in local_ids
        ]
        largest = _backends.current().reduce_if(
            None, self.hvd_reducer.largest, [values[place] for place in shared]
        )
        values = list(values)
        for place, value in zip(shared, largest, strict=True):
            values[place] = value
        return values

    # ---- What advances with updates, not batches ----

    def hvd_schedule_counts_updates(self) -> bool:
        return bool(
            self.gradient_accumulation_steps
            and not self.hvd_settings.schedule_counts_batches
        )

    def hvd_at_update(
        self, call: Callable[[], None], changes: Sequence[Any]
    ) -> None:
        # Keras itself, with an accumulation of the optimizer's own, does it
        # with each batch.
        passes = self.hvd_settings.backward_passes_per_step
        if passes > 1 and self.hvd_is_applying():
            _backends.current().call_if(self._is_update(), call, changes)
        else:
            call()

    def _is_update(self) -> Any:
        """Returns a tensor: whether this batch ends an accumulation."""
        num_batches = private.num_batches_seen_by(self) + 1
        steps = self.gradient_accumulation_steps
        return keras.ops.equal(num_batches % steps, 0)

    # ---- Checks ----

    def _check_start(self, variables: Sequence[Any]) -> None:
        process_set = self.hvd_settings.reduce.process_set
        if process_set.included():
            local_ids = self.hvd_local.ids()
            self.hvd_start_check(
                self,
                [
                    variable
                    for variable in variables
                    if private.identity_of(variable) not in local_ids
                ],
                self.hvd_local,
                process_set,
            )

    def _check_reduced(self, variables: Sequence[Any]) -> None:
        if (
            vars(self).pop("_hvd_num_reductions", 0)
            or self.gradient_accumulation_steps
            or self.hvd_watch is not None  # it may have skipped the update
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
            "`apply` does not. Each rank would train alone."
        )

    def _check_clipping(self) -> None:
        size = self.hvd_settings.reduce.process_set.size() or 1
        if self.hvd_local and self.global_clipnorm and size > 1:
            raise ValueError(
                "`global_clipnorm` must be None if variables are local: the "
                "norm of all gradients then differs by rank, and ranks would "
                "clip shared gradients differently. Received: global_clipnorm="
                f"{self.global_clipnorm} (optimizer {self.name!r}). Use "
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
                        f"`{where}` must hold variables that the optimizer "
                        f"trains. Received: {path_of(variable)!r}, which is "
                        f"not one of the {len(known)} variables of optimizer "
                        f"{self.name!r}."
                    )

    # ---- Copies ----

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return _Config(config, self.hvd_settings)

    @classmethod
    def from_config(cls, config: Any, *args: Any, **kw: Any) -> Any:
        if not isinstance(config, _Config):
            name = cls.hvd_base.__name__
            raise ValueError(
                "`config` must be the very dict that `get_config()` of a "
                "distributed optimizer returned: a copy of it does not say how "
                f"to reduce. Received: a {type(config).__name__}. Instead, "
                f"call `DistributedOptimizer({name}.from_config(config))`, "
                "with the arguments that it had."
            )
        made: Any = super().from_config(config, *args, **kw)  # type: ignore[misc]
        made.hvd_distribute(config.settings)
        return made

    def __reduce__(self) -> Any:
        # A pickle names the plain class, so it loads without hvd_keras.
        reduced: Any = super().__reduce__()
        return (private.unpickler_of(self.hvd_base), *reduced[1:])

    def __copy__(self) -> Any:
        # Even a shallow copy of a plain optimizer has its own variables.
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A copy in the same process stays distributed.
        function, arguments = self.__reduce__()
        plain = function(*copy.deepcopy(arguments, memo))
        plain.__class__ = type(self)
        plain.hvd_distribute(self.hvd_settings)
        vars(plain)["_hvd_local"] = self.hvd_local
        memo[id(self)] = plain
        return plain
