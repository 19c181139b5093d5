"""The hosts of a job, which a policy knows by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_keras._job.bootstrap import interfaces
from hvd_keras.config import Config
from hvd_keras.run.gathering import Gathering
from hvd_keras.run.hosts import AgentWatcher, Host, LocalHost, RemoteHost
from hvd_keras.run.look import Folder
from hvd_keras.run.loop import Loop
from hvd_keras.run.placement import Plan
from hvd_keras.run.policy import HostSlots, Start


class Crew:
    """This host and those with agents. Make it before any threads exist.

    Attributes:
        hosts: All hosts; those that come again take their old places.
        local: This host, if it is one of them.
        gathering: Starts agents; None: there is one host.
    """

    def __init__(
        self,
        loop: Loop,
        watcher: AgentWatcher,
        plan: Plan,
        config: Config,
        folder: Folder,
    ) -> None:
        self.hosts: list[Host] = []
        self.local: LocalHost | None = None
        self.gathering: Gathering | None = None
        self._loop = loop
        self._watcher = watcher
        self._config = config
        self._by_name: dict[str, Host] = {}
        for planned in plan.hosts:
            if planned.is_local:
                name = config.hostname or planned.name
                self.local = LocalHost(loop, watcher, name)
                self.local.keep_records(folder)
                self.hosts.append(self.local)
            else:
                is_own = plan.way == "hosts"
                remote = RemoteHost(
                    loop, watcher, planned.name, config, has_own_command=is_own
                )
                remote.num_slots = planned.slots
                self.hosts.append(remote)

    def gathered(self, plan: Plan) -> list[HostSlots]:
        """Returns the hosts that have come, with their slots."""
        found = []
        for host, planned in zip(self.hosts, plan.hosts, strict=True):
            if not isinstance(host, RemoteHost):
                found.append(HostSlots(host.name, planned.slots or 0, True))
            elif host.facts:  # else there are enough without it
                found.append(HostSlots(host.name, host.slots()))
            self.take(host)
        return found

    def take(self, host: Host) -> None:
        """Gives a host its name from now on."""
        self._by_name[host.name] = host

    def knows(self, host: Host) -> bool:
        """Whether the host has its name still; it loses it at its end."""
        return self._by_name.get(host.name) is host

    def placed(self, start: Start) -> Host:
        """Returns the host of ranks to start, which knows its place now."""
        host = self._by_name[start.host]
        host.place = start.place
        return host

    def signal(self, number: int, ranks: Sequence[int]) -> None:
        """Sends a signal to ranks, and to what they have started."""
        for host in self.hosts:
            chosen = [rank for rank in ranks if rank in host.place.ranks()]
            if chosen:
                host.signal(number, chosen, to_groups=True)

    def start(self, name: str, num_slots: int) -> None:
        """Starts the agent of a host that comes now, or again."""
        host = RemoteHost(self._loop, self._watcher, name, self._config)
        host.num_slots = num_slots
        self.take(host)
        assert self.gathering is not None
        self.gathering.start_later(host)

    def end(self, name: str) -> None:
        """Ends the agent of a host, or waits no more for it."""
        host = self._by_name.pop(name)
        if isinstance(host, RemoteHost) and not host.facts:
            assert self.gathering is not None
            self.gathering.give_up(host)
        else:
            host.end(0)

    def failures(self) -> list[tuple[str, str]]:
        """Returns the hosts whose agents do not come, and why."""
        found = self.gathering.failures() if self.gathering else ()
        return [(host.name, why) for host, why in found if self.knows(host)]

    def named(self, slots: Mapping[str, int]) -> dict[str, int]:
        """Returns hosts that a program names, by the names of the job."""
        here = "" if self.local is None else self.local.name
        return {
            here if here and interfaces.is_this_host(name) else name: number
            for name, number in slots.items()
        }
