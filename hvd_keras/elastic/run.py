"""Runs a training function again when the members of the job change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hvd_keras._common.autograph import as_it_is
from hvd_keras._job import membership
from hvd_keras.elastic._errors import Changes
from hvd_keras.elastic.interrupts import HostsUpdatedInterrupt
from hvd_keras.elastic.state import State


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function, whose first argument is a `State`.

    It gives all ranks the state of rank 0, then calls the function. If a rank
    is lost, the others go back to their last commit, form a new membership in
    the same processes, and begin again with the newest state that a rank has.
    If the members shall change, `state.commit()` lets them, and no state is
    lost.

    Args:
        func: Trains from where `state` says, calls `state.commit()` from time
            to time, and returns when it is done.

    Returns:
        A function with the arguments and the result of `func`.

    Raises:
        JobError: From the function, if the job is not elastic: a rank is lost.

    Example:

    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.step < 1000:
    ...         train_one_batch()
    ...         state.step += 1
    ...         state.commit()
    >>> train(hvd.elastic.TensorFlowState(model.variables, step=0))
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kw: Any) -> Any:
        membership.announce_elastic()
        changes = Changes()
        state._hvd_at_progress = changes.note_progress
        if membership.is_waiting():
            membership.rejoin()
            state.on_reset()
        while True:
            try:
                membership.note_state(is_first=state._hvd_sync())
                return func(state, *args, **kw)
            except HostsUpdatedInterrupt:
                state._hvd_save()
            except Exception as error:
                if not changes.begin_after(error):
                    raise
                state.restore()
            membership.rejoin()
            state.on_reset()

    return as_it_is(wrapper)
