"""The hosts of an elastic job, which come and go. Knows them by their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.job.policy import Action, EndHost, Say, Start, StartHost
from hvd_keras.run.job.slots import Slots
from hvd_keras.run.ranks.environment import Place

# Before a host is tried again that could not be reached, or was lost. If the
# user gives a cooldown, that counts, but ssh is not started more often than so.
_RETRY_SECONDS = 10.0
_LEAST_RETRY_SECONDS = 1.0


class Fleet:
    """Takes hosts in and lets them go; `slots` has those that may be used."""

    def __init__(
        self,
        slots: Slots,
        plan: Plan,
        act: Callable[[Action], None],
        *,
        patience_seconds: float,
        namer: str,
        tries_lost_again: bool,
    ) -> None:
        """Has no hosts yet.

        Args:
            slots: The slots of the hosts.
            plan: How the job began.
            act: Takes what is to be done.
            patience_seconds: How long to wait for the agent of a host.
            namer: Who names the hosts, for words.
            tries_lost_again: Whether to start the agents of lost hosts again.
        """
        self._slots = slots
        self._plan = plan
        self._act = act
        self._patience_seconds = patience_seconds
        self._namer = namer
        self._tries_lost_again = tries_lost_again and plan.way == "ssh"
        self._here = ""  # the host of hvdrun, also if it is not used now
        self._present: dict[str, Place] = {}
        self._leaving: dict[str, Place] = {}
        # Their agents are being started: until when, and for how many slots.
        self._awaited: dict[str, tuple[float, int]] = {}
        self._again_at: dict[str, float] = {}
        self._lost: dict[str, int] = {}  # slots of hosts to try again

    def take_in(
        self, host: str, num_slots: int, *, is_here: bool = False
    ) -> None:
        """Uses the slots of a host from now on."""
        if is_here:
            self._here = host
        self._awaited.pop(host, None)
        self._lost.pop(host, None)
        cross_size = 1 if self._plan.is_of_one_host else 2
        self._present[host] = Place(
            0, num_slots, num_slots, 0, cross_size, is_elastic=True
        )
        self._slots.add_host(host, num_slots)

    def is_here(self, host: str) -> bool:
        """Whether that is the host of hvdrun."""
        return host == self._here

    def start(
        self,
        host: str,
        members: Mapping[int, int],
        newcomers: Sequence[Sequence[int]],
    ) -> None:
        """Starts members on a host that is used.

        Args:
            host: The host.
            members: The slot there of each.
            newcomers: See `Place`.
        """
        place = self._present[host]
        self._present[host] = place = dataclasses.replace(
            place,
            members=(*place.members, *members),
            slots=(*place.slots, *members.values()),
            newcomers=newcomers,
        )
        self._act(Start(host, place, list(members)))

    def may_grow(self) -> bool:
        """Whether other hosts may come."""
        return self._plan.may_grow or bool(self._lost or self._awaited)

    def lose(self, host: str, now: float) -> Sequence[int]:
        """Notes that a host is gone; returns who was started there."""
        if host in self._awaited:
            self.give_up(host, "its agent was lost", now)
        elif host in self._leaving:
            return self._leaving.pop(host).members
        elif host in self._present:
            place = self._present.pop(host)
            self._slots.remove_host(host)
            self._note_failure(host, place.num_ranks, now)
            return place.members
        return ()

    def give_up(self, host: str, why: str, now: float) -> None:
        """Waits no more for a host, if it is awaited."""
        if host in self._awaited:
            _, num_slots = self._awaited.pop(host)
            self._act(EndHost(host))
            self._act(Say(f"host {host} did not start: {why}"))
            self._note_failure(host, num_slots, now)

    def _note_failure(self, host: str, num_slots: int, now: float) -> None:
        cool_at = self._slots.cool(host, now)
        least = _LEAST_RETRY_SECONDS if cool_at > now else _RETRY_SECONDS
        self._again_at[host] = max(cool_at, now + least)
        if self._tries_lost_again:
            self._lost[host] = num_slots

    def let_go(self, host: str, why: str) -> Sequence[int]:
        """Has a host leave after its members, which it returns."""
        if host not in self._present:
            return ()
        self._act(Say(f"host {host} leaves: {why}"))
        self._leaving[host] = self._present.pop(host)
        self._slots.remove_host(host)
        return self._leaving[host].members

    def next_deadline(self) -> float | None:
        """Returns the time by which `step()` must be called."""
        deadlines = [late_at for late_at, _ in self._awaited.values()]
        deadlines += [self._again_at[host] for host in self._lost]
        return min(deadlines, default=None)

    def step(self, running: Collection[int], now: float) -> None:
        """Does what is due.

        Args:
            running: The members that have not ended.
            now: The time.
        """
        for host, place in list(self._leaving.items()):
            if not any(number in running for number in place.members):
                del self._leaving[host]
                if not self.is_here(host):
                    self._act(EndHost(host))
        for host in [h for h in self._lost if self._again_at[h] <= now]:
            self._start(host, self._lost.pop(host), now)
        for host, (late_at, _) in list(self._awaited.items()):
            if late_at <= now:
                seconds = self._patience_seconds
                late = f"within {seconds:g} s (HVD_START_TIMEOUT)"
                self.give_up(host, f"it did not come {late}", now)

    def close(self) -> None:
        """Asks for no more hosts."""
        self._tries_lost_again = False
        self._lost.clear()

    def use(self, named: Mapping[str, int], now: float) -> list[int]:
        """Uses these hosts alone; returns the members that must leave.

        Args:
            named: The slots of each host.
            now: The time.
        """
        leaving: list[int] = []
        for host in [h for h in self._present if h not in named]:
            leaving += self.let_go(host, f"{self._namer} does not name it")
        used = {*self._present, *self._leaving, *self._awaited}
        for host, num_slots in named.items():
            is_cool = self._again_at.get(host, 0.0) <= now
            if host not in used and num_slots and is_cool:
                self._start(host, num_slots, now)
        return leaving

    def _start(self, host: str, num_slots: int, now: float) -> None:
        if self.is_here(host):
            self.take_in(host, num_slots)
        else:
            self._awaited[host] = (now + self._patience_seconds, num_slots)
            self._act(StartHost(host, num_slots))
