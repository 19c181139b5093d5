"""The hosts of an elastic job, which come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hvd_keras._job.bootstrap import interfaces
from hvd_keras.run.discovery import Discovery, HostSlots
from hvd_keras.run.environment import Place
from hvd_keras.run.gathering import Gathering
from hvd_keras.run.hosts import Host, RemoteHost
from hvd_keras.run.loop import Loop
from hvd_keras.run.placement import Plan
from hvd_keras.run.slots import Slots

# Before a host is tried again that could not be reached, or was lost.
_RETRY_SECONDS = 10.0


class Fleet:
    """Takes hosts in and lets them go; `slots` has those that may be used."""

    def __init__(
        self,
        hosts: list[Host],
        slots: Slots,
        plan: Plan,
        *,
        say: Callable[[str], None],
        new_host: Callable[[str], RemoteHost],
        runs: Callable[[int], bool],
        ask_to_leave: Callable[[Sequence[int]], None],
    ) -> None:
        """Has no hosts yet.

        Args:
            hosts: All hosts of the job, also those that have left.
            slots: The slots of the hosts.
            plan: How the job began.
            say: Shows a line.
            new_host: Makes a host whose agent has not come yet.
            runs: Whether a member has not ended.
            ask_to_leave: Has members leave at the next change.
        """
        self._hosts = hosts
        self._slots = slots
        self._plan = plan
        self._say = say
        self._new_host = new_host
        self._runs = runs
        self._ask_to_leave = ask_to_leave
        self._present: list[Host] = []
        self._leaving: list[Host] = []
        self._awaited: list[RemoteHost] = []  # their agents are being started
        self._again_at: dict[str, float] = {}  # by host
        self._gathering: Gathering | None = None
        self._discovery: Discovery | None = None

    def take_in(self, host: Host, num_slots: int) -> None:
        """Uses the slots of a host from now on."""
        cross_size = 1 if self._plan.is_of_one_host else 2
        host.place = Place(
            0, num_slots, num_slots, 0, cross_size, is_elastic=True
        )
        if host in self._awaited:
            self._awaited.remove(host)
        self._present.append(host)
        self._slots.add_host(host.name, num_slots)

    def discover(
        self, loop: Loop, path: str, slots_per_host: int, gathering: Gathering
    ) -> None:
        """Asks a program for the hosts from now on."""
        self._gathering = gathering
        self._discovery = Discovery(
            loop, path, slots_per_host, self._on_hosts, self._say
        )

    def of_slot(self, name: str) -> Host:
        """Returns the host of that name."""
        return next(host for host in self._present if host.name == name)

    def is_known(self, host: Host) -> bool:
        """Whether the job has taken the host in, and has not lost it."""
        return host in self._present or host in self._leaving

    def may_grow(self) -> bool:
        """Whether other hosts may come."""
        return self._plan.may_grow

    def lose(self, host: Host) -> None:
        """Notes that a host is gone."""
        for hosts in (self._present, self._leaving):
            if host in hosts:
                hosts.remove(host)
                self._slots.remove_host(host.name)
        self._again_at[host.name] = time.monotonic() + _RETRY_SECONDS

    def let_go(self, host: Host, why: str) -> None:
        """Has the members of a host leave, and then the host."""
        if host not in self._present:
            return
        self._say(f"host {host.name} leaves: {why}")
        self._present.remove(host)
        self._leaving.append(host)
        self._slots.remove_host(host.name)
        self._ask_to_leave(host.place.members)

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        return self._discovery.next_deadline() if self._discovery else None

    def step(self) -> None:
        """Does what is due."""
        if self._discovery is not None:
            self._discovery.step()
        for host in list(self._leaving):
            if not any(map(self._runs, host.place.members)):
                self._leaving.remove(host)
                if isinstance(host, RemoteHost):
                    host.end(0)
        for host in list(self._awaited):
            assert self._gathering is not None
            why = self._gathering.why_not_here(host)
            if why is not None:
                self._awaited.remove(host)
                self._again_at[host.name] = time.monotonic() + _RETRY_SECONDS
                self._say(f"host {host.name} did not start: {why}")

    def close(self) -> None:
        """Asks for no more hosts."""
        if self._discovery is not None:
            self._discovery.close()
            self._discovery = None

    def _on_hosts(self, found: HostSlots) -> None:
        if self._gathering is None or self._discovery is None:
            return
        names = {self._name_of(name): n for name, n in found.items()}
        for host in list(self._present):
            if host.name not in names:
                self.let_go(host, "the discovery script does not name it")
        used = [*self._present, *self._leaving, *self._awaited]
        for name, num_slots in names.items():
            again_at = self._again_at.get(name, 0.0)
            if any(host.name == name for host in used) or num_slots == 0:
                continue
            if again_at > time.monotonic():
                continue
            self._take_back_or_start(name, num_slots)

    def _take_back_or_start(self, name: str, num_slots: int) -> None:
        for host in self._hosts:
            if host.name == name and not isinstance(host, RemoteHost):
                self.take_in(host, num_slots)  # this host
                return
        host = self._new_host(name)
        host.num_slots = num_slots
        self._awaited.append(host)
        assert self._gathering is not None
        self._gathering.add(host)

    def _name_of(self, name: str) -> str:
        """Returns the name under which the job knows a host."""
        for host in self._hosts:
            is_here = not isinstance(host, RemoteHost)
            if is_here and interfaces.is_this_host(name):
                return host.name
        return name
