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

# Before a host is tried again that could not be reached, or was lost. If the
# user gives a cooldown, that counts, but ssh is not started more often than so.
_RETRY_SECONDS = 10.0
_LEAST_RETRY_SECONDS = 1.0


class Fleet:
    """Takes hosts in and lets them go; `slots` has those that may be used.

    Attributes:
        gathering: Starts agents; None: the job is of one host.
    """

    def __init__(
        self,
        hosts: list[Host],
        slots: Slots,
        plan: Plan,
        *,
        patience_seconds: float,
        tries_lost_again: bool,
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
            patience_seconds: How long to wait for the agent of a host.
            tries_lost_again: Whether to start the agents of lost hosts again,
                if no program says which hosts are there.
            say: Shows a line.
            new_host: Makes a host whose agent has not come yet.
            runs: Whether a member has not ended.
            ask_to_leave: Has members leave at the next change.
        """
        self.gathering: Gathering | None = None
        self._hosts = hosts
        self._slots = slots
        self._plan = plan
        self._patience_seconds = patience_seconds
        self._tries_lost_again = tries_lost_again and plan.way == "ssh"
        self._say = say
        self._new_host = new_host
        self._runs = runs
        self._ask_to_leave = ask_to_leave
        self._present: list[Host] = []
        self._leaving: list[Host] = []
        # Their agents are being started, until then.
        self._awaited: dict[RemoteHost, float] = {}
        self._again_at: dict[str, float] = {}  # by host
        self._lost: dict[str, int] = {}  # slots of hosts to try again
        self._discovery: Discovery | None = None

    def take_in(self, host: Host, num_slots: int) -> None:
        """Uses the slots of a host from now on."""
        cross_size = 1 if self._plan.is_of_one_host else 2
        host.place = Place(
            0, num_slots, num_slots, 0, cross_size, is_elastic=True
        )
        if isinstance(host, RemoteHost):
            self._awaited.pop(host, None)
        self._lost.pop(host.name, None)
        self._present.append(host)
        self._slots.add_host(host.name, num_slots)

    def discover(self, loop: Loop, path: str, slots_per_host: int) -> None:
        """Asks a program for the hosts from now on."""
        self._tries_lost_again = False  # the program knows better
        self._discovery = Discovery(
            loop,
            path,
            slots_per_host,
            self._on_hosts,
            lambda text: self._say(f"{text} The hosts stay as they are."),
        )

    def of_slot(self, name: str) -> Host:
        """Returns the host of that name."""
        return next(host for host in self._present if host.name == name)

    def may_grow(self) -> bool:
        """Whether other hosts may come."""
        return self._plan.may_grow or bool(self._lost or self._awaited)

    def lose(self, host: RemoteHost) -> bool:
        """Notes that a host is gone; returns whether it had been taken in."""
        if host in self._awaited:
            self._give_up(host, "its agent was lost")
            return False
        if host in self._leaving:
            self._leaving.remove(host)
            return True
        if host not in self._present:
            return False
        self._present.remove(host)
        self._slots.remove_host(host.name)
        self._note_failure(host.name, host.place.num_ranks)
        return True

    def _give_up(self, host: RemoteHost, why: str) -> None:
        assert self.gathering is not None
        num_slots = host.num_slots or 0
        del self._awaited[host]
        self.gathering.give_up(host)
        self._say(f"host {host.name} did not start: {why}")
        self._note_failure(host.name, num_slots)

    def _note_failure(self, name: str, num_slots: int) -> None:
        now = time.monotonic()
        cool_at = self._slots.cool(name, now)
        least = _LEAST_RETRY_SECONDS if cool_at > now else _RETRY_SECONDS
        self._again_at[name] = max(cool_at, now + least)
        if self._tries_lost_again:
            self._lost[name] = num_slots

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
        deadlines = [*self._awaited.values()]
        deadlines += [self._again_at[name] for name in self._lost]
        if self._discovery is not None:
            deadlines.append(self._discovery.next_deadline())
        return min(deadlines, default=None)

    def step(self) -> None:
        """Does what is due."""
        if self._discovery is not None:
            self._discovery.step()
        for host in list(self._leaving):
            if not any(map(self._runs, host.place.members)):
                self._leaving.remove(host)
                if isinstance(host, RemoteHost):
                    host.end(0)
        now = time.monotonic()
        for name in [n for n in self._lost if self._again_at[n] <= now]:
            self._start(name, self._lost.pop(name))
        for host, late_at in list(self._awaited.items()):
            assert self.gathering is not None
            why = self.gathering.why_not_here(host)
            if why is None and late_at <= now:
                why = (
                    f"it did not come within {self._patience_seconds:g} s "
                    "(HVD_START_TIMEOUT)"
                )
            if why is not None:
                self._give_up(host, why)

    def close(self) -> None:
        """Asks for no more hosts."""
        self._tries_lost_again = False
        self._lost.clear()
        if self._discovery is not None:
            self._discovery.close()
            self._discovery = None

    def _on_hosts(self, found: HostSlots) -> None:
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
            self._start(name, num_slots)

    def _start(self, name: str, num_slots: int) -> None:
        for host in self._hosts:
            if host.name == name and not isinstance(host, RemoteHost):
                self.take_in(host, num_slots)  # this host
                return
        host = self._new_host(name)
        host.num_slots = num_slots
        self._awaited[host] = time.monotonic() + self._patience_seconds
        assert self.gathering is not None
        self.gathering.start_later(host)

    def _name_of(self, name: str) -> str:
        """Returns the name under which the job knows a host."""
        for host in self._hosts:
            is_here = not isinstance(host, RemoteHost)
            if is_here and interfaces.is_this_host(name):
                return host.name
        return name
