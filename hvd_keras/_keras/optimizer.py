"""Turns the private methods of a Keras optimizer into hooks of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from hvd_keras._keras.lookup import require


class OptimizerHooks:
    """Mixin that comes before the class of a Keras optimizer.

    The optimizer then calls the methods `hvd_*`, which a subclass defines.
    """

    iterations: Any

    def hvd_reduce(
        self, gradients: list[Any], variables: list[Any] | None
    ) -> list[Any]:
        """Returns the gradients that Keras is to clip and apply.

        Args:
            gradients: This rank's gradients, without None.
            variables: The variable of each gradient; None if unknown.
        """
        raise NotImplementedError

    def hvd_weighted(self, gradients: list[Any]) -> list[Any]:
        """Returns a batch's gradients, by the rows of this rank."""
        raise NotImplementedError

    def hvd_apply_if_finite(
        self,
        gradients: list[Any],
        variables: list[Any],
        apply: Callable[[], None],
    ) -> None:
        """Calls `apply`, which reduces the gradients and applies them."""
        raise NotImplementedError

    def hvd_new_values(
        self, values: list[Any], variables: list[Any]
    ) -> list[Any]:
        """Returns the values that variables get instead of an update.

        Args:
            values: Those of this rank: scales and amax histories of float8.
            variables: The variable of each.
        """
        raise NotImplementedError

    def hvd_at_update(
        self, call: Callable[[], None], changes: Sequence[Any]
    ) -> None:
        """Calls `call`, which assigns to `changes`, if this is an update."""
        raise NotImplementedError

    def hvd_schedule_counts_updates(self) -> bool:
        """Whether a schedule counts updates instead of batches."""
        raise NotImplementedError

    def hvd_is_applying(self) -> bool:
        """Whether gradients are being applied now."""
        return "_hvd_variables" in vars(self)

    def _backend_apply_gradients(
        self, grads: Any, trainable_variables: Any
    ) -> None:
        # The gradients here contain no None. Keras then calls
        # `_clip_gradients` (in a branch if it accumulates) without variables.
        vars(self)["_hvd_variables"] = list(trainable_variables)
        grads = self.hvd_weighted(list(grads))
        apply = super()._backend_apply_gradients  # type: ignore[misc]
        try:
            self.hvd_apply_if_finite(
                grads,
                list(trainable_variables),
                lambda: apply(grads, trainable_variables),
            )
        finally:
            del vars(self)["_hvd_variables"]

    def _overwrite_variables_directly_with_gradients(
        self, grads: Any, trainable_variables: Any
    ) -> Any:
        variables = list(trainable_variables)
        places = [
            place
            for place, variable in enumerate(variables)
            if getattr(variable, "overwrite_with_gradient", False)
        ]
        if places:
            grads = list(grads)
            values = self.hvd_new_values(
                [grads[place] for place in places],
                [variables[place] for place in places],
            )
            for place, value in zip(places, values, strict=True):
                grads[place] = value
        overwrite = super()._overwrite_variables_directly_with_gradients  # type: ignore[misc]
        return overwrite(grads, variables)

    def _clip_gradients(self, grads: Any) -> Any:
        variables = vars(self).get("_hvd_variables")
        reduced = self.hvd_reduce(list(grads), variables)
        return super()._clip_gradients(reduced)  # type: ignore[misc]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        from hvd_keras._keras import tensorflow as keras_tensorflow

        if keras_tensorflow.is_in_our_strategy():
            return grads_and_vars  # they were summed before they were clipped
        return super()._all_reduce_sum_gradients(  # type: ignore[misc]
            grads_and_vars
        )

    def _get_current_learning_rate(self) -> Any:
        schedule = vars(self).get("_learning_rate")
        if (
            isinstance(
                schedule, keras.optimizers.schedules.LearningRateSchedule
            )
            and self.hvd_schedule_counts_updates()
        ):
            return schedule(self.iterations)
        return super()._get_current_learning_rate()  # type: ignore[misc]

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        update = super()._update_model_variables_moving_average  # type: ignore[misc]
        self.hvd_at_update(
            lambda: update(trainable_variables),
            require(self, "_model_variables_moving_average"),
        )

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        overwrite = super()._overwrite_model_variables_with_average_value  # type: ignore[misc]
        self.hvd_at_update(
            lambda: overwrite(trainable_variables), trainable_variables
        )
