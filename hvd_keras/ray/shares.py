"""Shares of Ray's nodes, each held by an actor: the hosts of a job."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hvd_keras.ray._ray import available_resources_per_node, ray
from hvd_keras.ray.holder import Holder

_PERIOD_SECONDS = 1.0
# What others use by then, they will use for longer.
_PATIENCE_SECONDS = 10.0
# Ray's numbers are a little old, so they may still count what an actor got.
_SETTLE_SECONDS = 2.0
_ROUNDING = 1e-6  # Ray counts in parts of 10,000


@dataclasses.dataclass
class Share:
    """A part of a node, as a host of the job."""

    name: str  # no other share ever has it
    node: str
    num_slots: int
    holder: Any  # an actor
    coming: Any  # a reference; None: it has come
    asked_at: float


class Shares:
    """Takes what is free until there are enough slots, in a thread of its own.

    A share of a node that dies is given up, and others are taken for it. All
    methods may be called by any thread.
    """

    def __init__(
        self,
        need: Mapping[str, float],
        max_slots: int,
        on_change: Callable[[Mapping[str, int]], None],
        discover: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Begins.

        Args:
            need: What Ray must reserve for a slot, such as {"CPU": 1}.
            max_slots: How many slots to take at most.
            on_change: Called with the slots of all shares, by name, when they
                have changed.
            discover: Returns the slots of each host, by its name or address,
                that may be taken; None: all that Ray has.
        """
        self._need = {name: n for name, n in need.items() if n}
        self._max_slots = max_slots
        self._on_change = on_change
        self._discover = discover
        self._shares: list[Share] = []
        self._known: dict[str, int] = {}
        self._num_named: dict[str, int] = {}
        self._settles_at = 0.0
        self._has_changed = threading.Condition()
        self._is_closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self, num_slots: int, timeout_seconds: float) -> bool:
        """Waits until there are so many slots; returns whether there are.

        Raises:
            ray.exceptions.RayError: Ray cannot start an actor.
        """
        with self._has_changed:
            return self._has_changed.wait_for(
                lambda: self._num_slots_or_error() >= num_slots,
                timeout_seconds,
            )

    def _num_slots_or_error(self) -> int:
        if self._error is not None:
            raise self._error
        return sum(self._known.values())

    def run(
        self,
        name: str,
        arguments: tuple[Any, ...],
        has_gone: Callable[[], bool],
    ) -> tuple[int, str]:
        """Runs an agent in a share; see `Holder.run`.

        Args:
            name: The share.
            arguments: Those of `Holder.run`.
            has_gone: Whether nobody waits for the agent's end any more.
        """
        with self._has_changed:
            found = [share for share in self._shares if share.name == name]
        if not found:
            return 1, f"Ray has lost the node of {name}"
        end = found[0].holder.run.remote(*arguments)
        while not ray.wait([end], timeout=_PERIOD_SECONDS)[0]:
            if has_gone():
                self._give_up(found[0])
                return 1, ""
        try:
            exit_status, words = ray.get(end)
        except ray.exceptions.RayError as error:
            self._give_up(found[0])
            return 1, str(error)
        return exit_status, words

    def close(self) -> None:
        """Gives everything back."""
        self._is_closed.set()
        self._thread.join()
        for share in list(self._shares):
            self._give_up(share)

    def _watch(self) -> None:
        # If the driver has left Ray, calls would start another one.
        while not self._is_closed.is_set() and ray.is_initialized():
            error: Exception | None = None
            try:
                self._step()
            except Exception as raised:  # Ray may be there again soon
                error = raised
                self._settles_at = time.monotonic() + _PATIENCE_SECONDS
            with self._has_changed:
                self._error = error
                self._has_changed.notify_all()
            self._is_closed.wait(_PERIOD_SECONDS)

    def _step(self) -> None:
        now = time.monotonic()
        nodes = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
        limits = dict.fromkeys(nodes, self._max_slots)
        if self._discover is not None:
            found = self._discover()
            limits = {n: _named(found, known) for n, known in nodes.items()}
        for share in list(self._shares):
            is_late = now - share.asked_at > _PATIENCE_SECONDS
            if not limits.get(share.node):
                self._give_up(share)
            elif share.coming is not None:
                if ray.wait([share.coming], timeout=0)[0]:
                    self._note_arrival(share)
                elif is_late:
                    self._give_up(share)
        if self._settles_at <= now and not any(
            share.coming is not None for share in self._shares
        ):
            self._take_more(nodes, limits)
        self._tell()

    def _note_arrival(self, share: Share) -> None:
        try:
            ray.get(share.coming)
        except ray.exceptions.RayError:
            self._give_up(share)
            raise
        share.coming = None
        self._settles_at = time.monotonic() + _SETTLE_SECONDS

    def _take_more(
        self, nodes: Mapping[str, Any], limits: Mapping[str, int]
    ) -> None:
        missing = self._max_slots - sum(s.num_slots for s in self._shares)
        free = available_resources_per_node()
        taken = dict.fromkeys(nodes, 0)
        for share in self._shares:
            taken[share.node] += share.num_slots
        room = {
            node: min(
                limit - taken[node],
                *(
                    int(free.get(node, {}).get(name, 0) / number + _ROUNDING)
                    for name, number in self._need.items()
                ),
            )
            for node, limit in limits.items()
        }
        for node in sorted(room, key=lambda node: -room[node]):
            num_slots = min(room[node], missing)
            if num_slots > 0:
                missing -= num_slots
                share = self._ask(node, nodes[node], num_slots)
                with self._has_changed:
                    self._shares.append(share)

    def _ask(self, node: str, known: Mapping[str, Any], num: int) -> Share:
        host = str(known["NodeManagerHostname"])
        count = self._num_named[host] = self._num_named.get(host, 0) + 1
        strategy = ray.util.scheduling_strategies
        needs = {name: n * num for name, n in self._need.items()}
        holder = (
            ray.remote(Holder)
            .options(
                num_cpus=needs.get("CPU", 0),
                num_gpus=needs.get("GPU", 0),
                scheduling_strategy=strategy.NodeAffinitySchedulingStrategy(
                    node, soft=False
                ),
            )
            .remote()
        )
        return Share(
            host if count == 1 else f"{host}#{count}",
            node,
            num,
            holder,
            holder.__ray_ready__.remote(),
            time.monotonic(),
        )

    def _give_up(self, share: Share) -> None:
        with self._has_changed:
            if share not in self._shares:
                return
            self._shares.remove(share)
        if ray.is_initialized():
            ray.kill(share.holder)

    def _tell(self) -> None:
        with self._has_changed:
            found = {s.name: s.num_slots for s in self._shares if not s.coming}
            if found == self._known:
                return
            self._known = found
        self._on_change(found)


def _named(slots: Mapping[str, int], known: Mapping[str, Any]) -> int:
    """Returns the slots of a node, by either of its names."""
    address = slots.get(str(known["NodeManagerAddress"]), 0)
    return slots.get(str(known["NodeManagerHostname"]), address)
