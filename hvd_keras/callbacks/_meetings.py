"""Lets ranks meet that train apart: makes their weights equal again."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import _backends, basics, process_set
from hvd_keras._common import log
from hvd_keras._gradients import aggregation, model_state
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._gradients.local_updates import AVERAGE, LocalUpdates, Outer
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models, writers
from hvd_keras._keras import names as private
from hvd_keras._keras.step_hook import StepHook
from hvd_keras._values.agreement import Check, together
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.variables import average_alike, broadcast_alike

_NAME = "LocalUpdates"
_OUTER = "_hvd_outer"
# An outer optimizer loses accuracy in less.
_MANY_STEPS = 10_000


def begin(callback_list: Any) -> None:
    """Lets the ranks of a `fit` that begins train apart, if they are to."""
    fit, model = keras_calls.running_fit(), callback_list.model
    if fit is None:
        return
    parts = _parts_of(model)
    settings = [part.hvd_settings.local_updates for part in parts]
    if not any(settings):
        return
    updates = _only(model, settings)
    own = _own_set(updates)
    for part in parts:
        part.hvd_train_within(own)
    if own.size() == basics.size():
        if basics.rank() == 0 and basics.size() > 1:
            log.info(
                "local_updates: all ranks are in one group "
                f"(within={updates.within!r}), so each step is reduced and "
                "nothing else changes."
            )
        return
    meetings = _Meetings(model, fit, updates, callback_list.params)
    meetings.set_model(model)
    # Before those that compare, average, predict or save.
    callback_list.callbacks = [meetings, *callback_list.callbacks]


def outer_variables_of(model: Any) -> list[Any]:
    """Returns what outer optimizers know; `model` must be built."""
    outer = _outer_of(model)
    return [] if outer is None else outer.variables


def note_restored(model: Any) -> None:
    """Notes that the `outer_variables_of` a model have been restored."""
    outer = _outer_of(model)
    if outer is not None:
        outer.is_restored = True


class _Meetings(keras.callbacks.Callback):
    """Meets every few steps, and whenever somebody looks at the weights."""

    def __init__(
        self,
        model: Any,
        fit: keras_calls.Call,
        updates: LocalUpdates,
        params: dict[str, Any] | None,
    ) -> None:
        super().__init__()
        self._fit = fit
        self._parts = _parts_of(model)
        passes = self._parts[0].gradient_accumulation_steps or 1
        self._period = updates.every * passes
        self._batch = 0
        # Whether what no gradient changes, and slots, differ by host.
        self._has_states = self._has_slots = False
        given = [getattr(c, "local_variables", ()) for c in fit.callbacks]
        local = [each for variables in given for each in variables]
        self._local = model_state.local_variables(model, local)
        self._outer = _outer_of(model)
        if self._outer is not None:
            self._outer.begin(_trained(model, self._local))
        if basics.rank() == 0:
            self._tell_of_short_times(params or {})
        fit.meet = self.meet
        # Whether a callback saves at the ends of epochs.
        (self._saves,) = together(f"{_NAME}/saving", [_saving(fit.callbacks)])
        writers.call_before_saving(fit, lambda: self.meet(True))
        _Step(model, fit, self)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batch = batch

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.meet()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self.meet(self._saves)

    def after_step(self, num_batches: int) -> bool:
        """Notes that a step was done; returns whether a meeting is due."""
        self._fit.is_apart = self._has_states = self._has_slots = True
        for part in self._parts:
            part.hvd_note_apart(True)
        done = self._batch + num_batches
        return done // self._period > self._batch // self._period

    def meet_by_weights(self) -> None:
        """Makes equal what gradients have changed, and numbers of steps."""
        model: Any = self._model
        weights = _trained(model, self._local)
        average_alike(weights, f"{_NAME}/weights")
        if self._outer is not None:
            self._outer.step(weights)
        rates = [part.learning_rate for part in self._parts]
        numbers = [v for v in self._of_optimizers() if not len(v.shape)]
        broadcast_alike(model_state.without(rates, numbers), 0)
        self._fit.is_apart = False

    def meet(self, with_slots: bool = False) -> None:
        """Makes equal what others see; the slots of optimizers if asked."""
        model = self.model  # on JAX, this gives it its values
        if self._fit.is_apart:
            self.meet_by_weights()
        if self._has_states:
            self._has_states = False
            states = model_state.without(
                self._local,
                [s.variable for s in aggregation.states_of(model) if s.is_mean],
            )
            for part in self._parts:
                states += private.averages_of_weights(part)
            average_alike(states, f"{_NAME}/states")
        if with_slots and self._has_slots:
            self._has_slots = False
            slots = [v for v in self._of_optimizers() if len(v.shape)]
            average_alike(slots, f"{_NAME}/slots")
            for part in self._parts:
                part.hvd_note_apart(False)

    def _tell_of_short_times(self, params: dict[str, Any]) -> None:
        num_steps = params.get("steps")
        if num_steps and num_steps < self._period:
            log.info(
                f"local_updates: an epoch has {num_steps} steps, and hosts "
                "meet at its end. With longer epochs (`steps_per_epoch`) they "
                "meet less often."
            )
        total = (num_steps or _MANY_STEPS) * params.get("epochs", 1)
        if self._outer is not None and total < _MANY_STEPS:
            log.warning(
                f"local_updates: this training has {total} steps. An outer "
                f"optimizer needs {_MANY_STEPS} and more; in less it loses "
                'accuracy. Use `outer="average"`.'
            )

    def _of_optimizers(self) -> list[Any]:
        """Returns the variables of optimizers, but sums of gradients."""
        return [
            each
            for optimizer in models.optimizers_of(self._model)
            for each in model_state.shared_variables_of(
                optimizer, self._local, with_apart=True
            )
        ]


class _Step(StepHook):
    """Lets the ranks meet after the steps in which it is due."""

    def __init__(
        self, model: Any, fit: keras_calls.Call, meetings: _Meetings
    ) -> None:
        # Steps that others skip count for nothing.
        super().__init__(model, fit, innermost=True)
        self._meetings = meetings

    def step(self, batches: Any, *given: Any) -> Any:
        result = self.train_function(*given, batches)
        if not self._meetings.after_step(self.model.steps_per_execution):
            return result
        meet = self._meetings.meet_by_weights
        if not given:
            meet()
            return result
        logs, *state = result
        state = _backends.current().change_state(self.model, state, meet)
        return logs, *state


def _parts_of(model: Any) -> list[Any]:
    return [
        part
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    ]


def _only(model: Any, settings: list[Any]) -> LocalUpdates:
    """Returns the local updates of all optimizers of a model."""
    if any(each != settings[0] for each in settings):
        raise ValueError(
            "All optimizers of a model must have the same `local_updates`: "
            f"its ranks meet as a whole. Received: {settings}."
        )
    if models.has_our_strategy(model):
        raise ValueError(
            "A model of `HvdStrategy` must not have `local_updates`: the "
            "strategy reduces the gradients of all ranks in each step. Make "
            "the model outside of its scope."
        )
    updates: LocalUpdates = settings[0]
    return updates


def _own_set(updates: LocalUpdates) -> ProcessSet:
    """Returns the ranks that reduce gradients with this one in each step."""
    (groups,) = together(f"{_NAME}/groups", [_grouping(updates.within)])
    sets = process_set.register_alike(groups)
    return next(each for each in sets if each.included())


def _grouping(within: str | ProcessSet) -> Check:
    """Returns lists of ranks: those that train together."""
    if isinstance(within, ProcessSet):
        lists = yield within.ranks or list(range(basics.size()))
        for rank, ranks in enumerate(lists):
            if rank not in ranks or any(lists[r] != ranks for r in ranks):
                raise InvalidArgumentError(
                    "`within` must be a process set that this rank is in, and "
                    "each rank must be in one of them. Received: "
                    f"within=ProcessSet({ranks}) on rank {rank} of "
                    f"{len(lists)}."
                )
        return [list(ranks) for ranks in sorted(set(map(tuple, lists)))]
    keys = yield basics.cross_rank() if within == "host" else basics.rank()
    groups: dict[int, list[int]] = {}
    for rank, key in enumerate(keys):
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


def _saving(callbacks: list[Any]) -> Check:
    """Returns whether one of Keras's callbacks saves at the ends of epochs."""
    of_ranks = yield writers.frequencies_of(callbacks)
    inside = [[e for e in each if e[1] != "epoch"] for each in of_ranks]
    if any(each != inside[0] for each in inside):
        raise InvalidArgumentError(
            "With `local_updates`, all ranks must have the callbacks that save "
            "in the middle of an epoch, since their weights meet before. One "
            f"rank alone writes. Received: {inside} on ranks 0 to "
            f"{len(inside) - 1}."
        )
    return any(each for each in of_ranks)


def _trained(model: Any, local: list[Any]) -> list[Any]:
    """Returns the weights that meet."""
    parts = _parts_of(model)
    trained = [v for p in parts for v in private.trainable_variables_of(p)]
    unique = {
        private.identity_of(v): v for v in trained or model.trainable_variables
    }
    return model_state.without(local, unique.values())


def _outer_of(model: Any) -> Outer | None:
    """Returns the outer optimizer of a model, made when it is first asked."""
    own = vars(model)
    for part in _parts_of(model)[:1]:
        updates = part.hvd_settings.local_updates
        if updates is None or updates.outer == AVERAGE:
            return None
        if not models.is_fully_built(model):
            raise ValueError(
                "The model must be built before `fit`, so that its outer "
                f"optimizer can begin. Received: {model.name!r}, not built; "
                "call it on a batch, or give it an `Input`."
            )
        if _OUTER not in own:
            local = model_state.local_variables(model)
            own[_OUTER] = Outer(updates.outer, _trained(model, local))
        outer: Outer = own[_OUTER]
        return outer
    return None
