"""The state of a training loop of one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from hvd_keras import basics, objects
from hvd_keras._common.autograph import as_it_is
from hvd_keras._job import membership
from hvd_keras._values.rhythm import Rhythm
from hvd_keras.elastic.interrupts import HostsUpdatedInterrupt


class State:
    """What a function has that `hvd.elastic.run` calls; a base class.

    A subclass says how to `save` the state in memory, to `restore` what was
    saved, and to `sync`: to give all ranks the state of rank `root_rank`.

    Attributes:
        root_rank: The rank that has saved most often, and so has the newest
            state. `run` sets it, also if rank 0 has come later.
    """

    root_rank = 0

    def __init__(self) -> None:
        self._hvd_at_reset: list[Callable[[], None]] = []
        self._hvd_at_progress: Callable[[], None] = _do_nothing
        self._hvd_rhythm = Rhythm("elastic/host_updates")
        self._hvd_num_saved = 0

    def register_reset_callbacks(
        self, callbacks: Iterable[Callable[[], None]]
    ) -> None:
        """Calls functions whenever the members have changed.

        They may set what depends on `size()`, such as the learning rate. The
        state is then that of the last commit; `sync` follows.
        """
        self._hvd_at_reset.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` when a new membership has begun."""
        self.reset()
        for callback in self._hvd_at_reset:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """Does nothing; Horovod has it. `hvdrun` tells of changes here."""

    def commit(self) -> None:
        """Saves the state; lets the members change if that is due.

        All ranks call it after the same step.

        Raises:
            HostsUpdatedInterrupt: The members change now; `run` handles it.
            SystemExit: This rank was told to leave; its status is 0.
            PeerLostError: A rank was lost; `run` handles it.
        """
        self._hvd_save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Lets the members change if that is due, without saving.

        It raises what `commit` raises. All ranks call it together; they ask
        each other a few times a second.
        """
        self._hvd_at_progress()
        if not membership.is_elastic() or not self._hvd_rhythm.is_due():
            return
        must_leave = membership.must_leave()
        (change,) = self._hvd_rhythm.ask(
            must_leave or membership.is_change_due()
        )
        if not change:
            return
        if must_leave:
            self.save()
            membership.announce_leave("it was told to leave")
            basics.shutdown()
            raise SystemExit(0)
        raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Keeps the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of `root_rank`, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when a new membership has begun; does nothing."""

    def _hvd_save(self) -> None:
        self.save()
        self._hvd_num_saved += 1

    def _hvd_sync(self) -> bool:
        """Syncs from the newest state; returns whether no rank had saved.

        All ranks save after the same steps. But a membership may end before all
        of them got that far, or got the state of the others at all.
        """
        saved = objects.allgather_object(
            self._hvd_num_saved, name="elastic/num_saved"
        )
        self.root_rank = saved.index(max(saved))
        self.sync()
        self._hvd_num_saved = max(saved) + 1
        return max(saved) == 0


def _do_nothing() -> None:
    """What `run` replaces."""


class ObjectState(State):
    """Keeps plain values, as attributes: numbers of epochs, names, arrays.

    Args:
        **kw: The attributes and their first values, of the types that
            `broadcast_object` takes.

    Example:

    >>> state = hvd.elastic.ObjectState(epoch=0, batch=0)
    >>> state.epoch += 1
    >>> state.restore()
    >>> state.epoch
    0
    """

    def __init__(self, **kw: Any) -> None:
        super().__init__()
        self._hvd_names = list(kw)
        for name, value in kw.items():
            setattr(self, name, value)
        self._hvd_saved = copy.deepcopy(kw)

    def save(self) -> None:
        """Keeps the attributes in memory."""
        own = {name: getattr(self, name) for name in self._hvd_names}
        self._hvd_saved = copy.deepcopy(own)

    def restore(self) -> None:
        """Goes back to the attributes that were saved."""
        for name, value in copy.deepcopy(self._hvd_saved).items():
            setattr(self, name, value)

    @as_it_is
    def sync(self) -> None:
        """Gives all ranks the attributes of `root_rank`, and saves."""
        own = {name: getattr(self, name) for name in self._hvd_names}
        own = objects.broadcast_object(
            own, self.root_rank, name="elastic/state"
        )
        for name, value in own.items():
            setattr(self, name, value)
        self.save()
