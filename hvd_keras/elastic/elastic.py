"""Elastic training by Keras's `fit`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._job import membership
from hvd_keras._keras import callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras.data._arguments import is_read_once
from hvd_keras.elastic._keeper import Keeper
from hvd_keras.elastic._run import Run


class Elastic(ForKeras3, keras.callbacks.Callback):
    """Lets `fit` go on when ranks die, leave or come.

    Start the job with `hvdrun --min-np N`. The ranks then *commit* from time to
    time: each copies the state of the training in its memory. If a rank dies,
    the others form a new membership in the same processes, go back to the last
    commit and train on. The job loses the steps since that commit, at most
    those of `commit_seconds`. When ranks come, or one is told to leave, all
    commit first and no step is lost.

    The state contains the weights, the optimizers with their iterations and
    loss scales, metrics, seeds, sums of gradients that are being accumulated,
    the attributes of callbacks that hold plain values, and the place in data
    from `hvd.shard`: each row comes once an epoch, whatever the number of
    ranks. A rank that dies takes its part of the metrics of the running epoch
    with it. A new rank gets the state of the first rank, but other seeds.

    Other data begin anew after a change; batches that were done are skipped.
    With `steps_per_epoch`, nothing is skipped.

    Callbacks that have begun do not begin again, except those of hvd_keras.
    Give all ranks the same callbacks: what a rank alone has goes with it.

    All ranks have the callback. `BroadcastGlobalVariablesCallback` is added if
    it is missing. Each epoch logs `hvd/commit_ms`: how long its commits took.

    Without `hvdrun --min-np` the members do not change, and a lost rank is an
    error as always.

    Args:
        commit_seconds: The time between commits. They are made after a step,
            and at the end of each epoch.
        directory: Rank 0 also writes the commits there, in a thread. The same
            job goes on from the newest one if all of it was ended, or from the
            one before if that is damaged. What cannot be written is a warning.
            The files are deleted when `fit` has ended. One job at a time may
            use the directory. None: no files.

    Raises:
        ValueError: An argument is wrong. From `fit`: the model is not built.
        DamagedFileError: From `fit`, on rank 0: all commits in `directory` are
            damaged.
        FileInUseError: From `fit`, on rank 0: another job uses `directory`.
        InvalidArgumentError: From `fit`, on rank 0: a folder or a link in
            `directory` has the name of a commit.
        OSError: From `fit`, on rank 0: `directory` cannot be written to.
        HvdError: From `fit`, on other ranks: what rank 0 has raised.
        TypeError: From `fit`: the data cannot begin anew.
        SystemExit: From `fit`: this rank was told to leave; its status is 0.

    Example:

    >>> elastic = hvd.elastic.Elastic(commit_seconds=10)
    >>> model.fit(hvd.shard((x, y), batch_size=32), callbacks=[elastic])
    """

    def __init__(
        self,
        commit_seconds: float = 10.0,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if not commit_seconds >= 0:
            raise ValueError(
                "`commit_seconds` must be a number >= 0. Received: "
                f"commit_seconds={commit_seconds!r}."
            )
        if directory is not None and not str(directory):
            raise ValueError(
                "`directory` must name a directory. Received: "
                f"directory={directory!r}."
            )
        self.commit_seconds = float(commit_seconds)
        self.directory = None if directory is None else os.fspath(directory)
        self._run: Run | None = None
        self._told_ms = 0.0

    def hvd_around_fit(
        self,
        model: Any,
        fit: Callable[..., Any],
        arguments: dict[str, Any],
    ) -> Any:
        """Runs a `fit` that has this callback.

        Args:
            model: The model.
            fit: Keras's `fit` of that model.
            arguments: Its arguments, by name.
        """
        if not membership.is_elastic() and self.directory is None:
            return fit(**arguments)
        if is_read_once(arguments.get("x")):
            raise TypeError(
                "`x` must be data that can begin anew, such as those of "
                f"`hvd.shard`. Received: {type(arguments['x']).__name__}."
            )
        self._told_ms = 0.0
        self._run = Run(
            model,
            fit,
            arguments,
            commit_seconds=self.commit_seconds,
            directory=self.directory,
        )
        try:
            return self._run.to_end()
        finally:
            self._run = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        callback_list = callback_lists.beginning_callback_list()
        fit = keras_calls.running_fit()
        if self._run is None or fit is None or callback_list is None:
            return
        callback_lists.call_batch_ends_in_order(callback_list)
        keeper = Keeper(self._run, fit)
        keeper.set_params(self.params)
        keeper.set_model(self.model)
        callback_lists.add_callback(callback_list, keeper)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        now_ms = 0.0 if self._run is None else self._run.commit_ms
        if logs is not None:
            logs["hvd/commit_ms"] = now_ms - self._told_ms
        self._told_ms = now_ms
