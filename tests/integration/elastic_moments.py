"""Moments of a membership's change, at which a rank may die."""

from __future__ import annotations

import functools
import importlib
import os
import signal
from typing import Any

from hvd_keras.elastic import _run

_CALLS = (
    # leaving
    "hvd_keras.elastic._keeper:Keeper._change",
    "hvd_keras._job.membership:rejoin",
    "hvd_keras.basics:_leave",
    # joining
    "hvd_keras.basics:_join",
    "hvd_keras._rendezvous.client:Rendezvous._prove_each_other",
    "hvd_keras._rendezvous.client:Rendezvous.exchange",
    "hvd_keras._job.startup:_attach",
    "hvd_keras._job.startup:_init_core",
    # exchanging commits
    "hvd_keras.elastic._entrance:Entrance.enter",
    "hvd_keras.elastic._entrance:Entrance._count_streams",
    "hvd_keras._values.object_exchange:allgather",
    # beginning again
    "hvd_keras.elastic._run:Run._keep_or_drop_traces",
    "hvd_keras.elastic._keeper:Keeper.on_train_begin",
    "hvd_keras._values.agreement:together",
    "hvd_keras.elastic._training_state:TrainingState.restore",
    # tracing
    "__main__:Traced.call",
    "hvd_keras._gradients.reducer:GradientReducer.__call__",
    # committing
    "hvd_keras.elastic._keeper:Keeper._commit",
    "hvd_keras.elastic._commits:Commits.add",
    "hvd_keras.elastic._commits:Commits._written",
)
# A moment, and what another rank does then, so that the members change.
MOMENTS = [
    (
        f"{call}:{when}",
        # Only a change that is wanted begins with a commit.
        "leave" if when == "before" or call.endswith("_change") else "kill",
    )
    for call in _CALLS
    for when in ("before", "after")
]


def prepare() -> None:
    """Has ranks trace anew in each membership; on all of them."""
    _run.depends_on_size = lambda model: True


def arm(moment: str) -> None:
    """Kills this process at the next such moment."""
    module, path, when = moment.split(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    function = getattr(owner, name)

    @functools.wraps(function)
    def dying(*args: Any, **kwargs: Any) -> Any:
        try:
            if when == "after":
                function(*args, **kwargs)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)
