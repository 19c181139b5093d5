"""The hosts of a job: this one, and those with agents, which come and go."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from hvd_keras._rendezvous import addresses, interfaces
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.local_server import address_of_rank_0
from hvd_keras._rendezvous.protocol import Identity
from hvd_keras._rendezvous.server import Server
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError, LaunchError
from hvd_keras.run.hosts import launching, planning
from hvd_keras.run.hosts.host import (
    AgentWatcher,
    Host,
    LocalHost,
    RemoteHost,
    refuse,
)
from hvd_keras.run.hosts.launching import Starter
from hvd_keras.run.hosts.placement import Plan, span
from hvd_keras.run.hosts.provider import Provided, ProvidedAgent
from hvd_keras.run.hosts.rank_records import Folder
from hvd_keras.run.job.policy import HostSlots, Start
from hvd_keras.run.ranks import environment
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.system.loop import Loop

# After the first host that cannot be reached, others may fail as well.
_MORE_FAILURES_SECONDS = 3.0
_BACKLOG = 1024
# Time for ssh to end after its agent.
_STARTER_SECONDS = 2.0
_SECONDS_TO_TELL = 10.0
_MOST_NAMED = 4


class StartInterruptedError(Exception):
    """A signal came before any rank was started."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_status = 128 + number


class Gathering:
    """The hosts of a job. Make it before any threads exist.

    Attributes:
        hosts: All hosts; those that come again take their old places.
        local: This host, if it is one of them.
        is_done: Whether all that must be there have come.
        provided: What names the hosts and starts the agents; None: hvdrun.
    """

    def __init__(
        self,
        loop: Loop,
        watcher: AgentWatcher,
        plan: Plan,
        spec: JobSpec,
        config: Config,
        folder: Folder | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        patience = config.heartbeat_timeout_seconds
        if patience < 2 * config.heartbeat_seconds and not plan.is_of_one_host:
            raise ConfigError(
                "`HVD_HEARTBEAT_TIMEOUT` must be twice HVD_HEARTBEAT_SECONDS "
                f"or more. Received: {config.heartbeat_timeout_seconds:g} s "
                f"and {config.heartbeat_seconds:g} s."
            )
        self.hosts: list[Host] = []
        self.local: LocalHost | None = None
        self.is_done = plan.is_of_one_host
        self._loop = loop
        self._watcher = watcher
        self._plan = plan
        self._spec = spec
        self._config = config
        self._by_name: dict[str, Host] = {}  # as a policy knows them
        self._starters: dict[Starter | ProvidedAgent, list[RemoteHost]] = {}
        self._refused: list[Stream] = []
        self._ports: dict[str, str] = {}  # by own address
        self._failures: dict[RemoteHost, str] = {}
        self._started_at = time.monotonic()
        self._gives_up_at = self._started_at + config.start_timeout_seconds
        self._interrupted_by: int | None = None
        self._say = say
        self.provided: Provided | None = None
        if spec.provision is not None:
            self.provided = Provided(loop, spec.provision)
        for planned in plan.hosts:
            if planned.is_local:
                name = config.hostname or planned.name
                self.local = LocalHost(loop, watcher, name)
                self.hosts.append(self.local)
                if folder is not None:
                    self.local.keep_records(folder)
            else:
                self.hosts.append(
                    self._remote_host(planned.name, planned.slots)
                )

    def _remote_host(self, name: str, num_slots: int | None) -> RemoteHost:
        has_own_command = self._plan.way == "hosts"
        host = RemoteHost(
            self._loop, self._watcher, name, self._config, has_own_command
        )
        host.num_slots = num_slots
        return host

    def serve(self, server: Server, secret: bytes) -> None:
        """Knows where agents come to, and the secret that they need."""
        self._server = server
        self._secret = secret

    def wait(self) -> None:
        """Returns when all hosts are there.

        Raises:
            LaunchError: A host cannot be reached, or does not come in time.
            StartInterruptedError: A signal came.
        """
        failures = {} if self.is_done else self.try_all()
        if failures and not self._is_enough(failures):
            lines = [f"  {name}: {why}" for name, why in failures.items()]
            if self._plan.way == "ssh":
                names = ",".join(host.name for host in self.hosts)
                lines.append(
                    f"`hvdrun --check -H {names}` says what is missing"
                )
            raise LaunchError("\n".join(["hosts failed to start:", *lines]))

    def try_all(self) -> dict[str, str]:
        """Waits for all hosts; returns those that do not come, and why.

        Raises:
            StartInterruptedError: A signal came.
        """
        {
            "ssh": self._start_agents,
            "provider": self._start_agents,
            "slurm": self._start_over_srun,
            "hosts": self._await_others,
        }[self._plan.way]()
        while missing := [h for h in self._remote() if not h.facts]:
            if self._plan.way == "hosts" and self._is_enough(missing):
                break
            if self._interrupted_by is not None:
                raise StartInterruptedError(self._interrupted_by)
            is_late = time.monotonic() >= self._gives_up_at
            if is_late or self._failures.keys() >= set(missing):
                break
            self._tell_of_late([h for h in missing if h not in self._failures])
            self._loop.step(min(self._time_left(), 0.5))
            self._server.step()
            for host in self.hosts:
                host.step()
        self.is_done = True
        waited = time.monotonic() - self._started_at
        late = f"it did not come within {waited:.0f} s"
        if waited >= self._config.start_timeout_seconds:
            late += " (HVD_START_TIMEOUT)"
        if self._plan.way == "ssh":
            late += "; `ssh HOST true` must work without a question"
        return {h.name: self._failures.get(h, late) for h in missing}

    def _tell_of_late(self, hosts: list[RemoteHost]) -> None:
        """Says, once, for which hosts it waits so long."""
        waited = time.monotonic() - self._started_at
        if self._say is None or not hosts or waited < _SECONDS_TO_TELL:
            return
        names = ", ".join(host.name for host in hosts[:_MOST_NAMED])
        more = " and others" if len(hosts) > _MOST_NAMED else ""
        cure = ""
        if self._plan.way == "ssh":
            cure = ". `ssh HOST true` must work without a question"
        self._say(
            f"no answer for {waited:.0f} s from {names}{more}; hvdrun waits "
            f"{self._config.start_timeout_seconds:.0f} s in all{cure}"
        )
        self._say = None

    def _is_enough(self, missing: Sized) -> bool:
        num_hosts = len(self.hosts) - len(missing)
        return self._plan.may_grow and num_hosts >= self._plan.min_hosts

    def interrupt(self, number: int) -> None:
        """Ends `wait()` because of a signal."""
        self._interrupted_by = number

    # ---- By their names ----

    def names(self) -> list[HostSlots]:
        """Returns the hosts that have come, with their slots."""
        found = []
        for host, planned in zip(self.hosts, self._plan.hosts, strict=True):
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

    def start(self, name: str, num_slots: int) -> None:
        """Starts the agent of a host that comes now, or again."""
        host = self._remote_host(name, num_slots)
        self.take(host)
        index = len(self.hosts)
        for number, known in enumerate(self.hosts):
            if known.name == name and known.has_ended():
                index = number  # so that the list does not grow
        self.hosts[index : index + 1] = [host]
        self._start_agent(index, host)

    def end(self, name: str) -> None:
        """Ends the agent of a host, or waits no more for it."""
        host = self._by_name.pop(name)
        if not isinstance(host, RemoteHost) or host.facts:
            host.end(0)
            return
        self._failures.pop(host, None)
        host.close()
        for starter, hosts in list(self._starters.items()):
            if hosts == [host]:
                starter.kill()
                del self._starters[starter]

    def failures(self) -> list[tuple[str, str]]:
        """Returns the hosts whose agents do not come, and why."""
        found = self._failures.items()
        return [(host.name, why) for host, why in found if self.knows(host)]

    def named(self, slots: Mapping[str, int]) -> dict[str, int]:
        """Returns hosts that a program names, by the names of the job."""
        here = "" if self.local is None else self.local.name
        return {
            here if here and interfaces.is_this_host(name) else name: number
            for name, number in slots.items()
        }

    def signal(self, number: int, ranks: Sequence[int]) -> None:
        """Sends a signal to ranks, and to what they have started."""
        for host in self.hosts:
            chosen = [rank for rank in ranks if rank in host.place.ranks()]
            if chosen:
                host.signal(number, chosen, to_groups=True)

    def describe(self) -> str:
        """Returns a line about the hosts, when they have their places."""
        parts, size = [], 0
        for host in self.hosts:
            if ranks := host.place.ranks():
                size += len(ranks)
                parts.append(f"{host.name} ({self._describe(host)})")
        return f"{size} ranks on {len(parts)} hosts: {', '.join(parts)}"

    @staticmethod
    def _describe(host: Host) -> str:
        if host.place.is_elastic:
            return f"members {', '.join(map(str, host.place.members))}"
        cores = environment.num_cores()
        if isinstance(host, RemoteHost):
            cores = int(host.facts["num_cores"])
        ranks = span(host.place.ranks())
        return f"{ranks}, {cores} core{'s' * (cores > 1)}"

    def take_agent(
        self, identity: Identity, stream: Stream, unsent: bytes
    ) -> None:
        """Takes the connection of an agent that has proved itself."""
        why_not = self._why_not(identity)
        if why_not is not None:
            refuse(stream, unsent, why_not)
            self._refused.append(stream)  # it must read the reason first
            return
        host = self.hosts[identity.rank]
        assert isinstance(host, RemoteHost)
        if host.is_connected:  # it was lost, and has come again
            host = self._remote_host(host.name, host.num_slots)
            self.hosts[identity.rank] = host
        if self._plan.way == "hosts":
            host.name = self._unique_name(identity.host, identity.rank)
        host.attach(stream, unsent, identity.pid)

    def _unique_name(self, name: str, index: int) -> str:
        """Returns the name of a host; containers may have one name."""
        others = [h for i, h in enumerate(self.hosts) if i != index]
        is_taken = any(other.name == name for other in others)
        return f"{name}#{index}" if is_taken else name

    def note_loss(self, host: RemoteHost, reason: str) -> None:
        """Notes that a host was lost before any rank was started."""
        self._failures.setdefault(
            host, f"its agent (pid {host.pid}) was lost: {reason}"
        )
        host.facts = {}
        self._hurry()

    def close(self, timeout_seconds: float) -> None:
        """Waits until the agents have freed everything, then hangs up."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and not all(
            host.has_ended() for host in self._remote()
        ):
            self._loop.step(0.1)
        for host in self._remote():
            host.close()
        soon = time.monotonic() + _STARTER_SECONDS
        for starter, hosts in self._starters.items():
            is_needless = all(host.is_lost for host in hosts)
            until = 0.0 if is_needless else min(soon, deadline)
            while starter.exit_status is None and time.monotonic() < until:
                self._loop.step(min(until - time.monotonic(), 0.1))
            if starter.exit_status is None:
                starter.kill()
        for stream in self._refused:
            stream.close()

    # ---- Ways to the other hosts ----

    def _start_agents(self) -> None:
        for index, host in enumerate(self.hosts):
            if isinstance(host, RemoteHost):
                self._start_agent(index, host)

    def _start_agent(self, index: int, host: RemoteHost) -> None:
        reach, target = self._spec.reach, host.name
        ssh = launching.ssh_options(reach.ssh_port, reach.ssh_identity_file)
        if self.provided is None:
            target = launching.ssh_address(ssh, host.name)
        command = launching.agent_command(reach.python)
        try:
            host.rendezvous = self._listen_for(target)
        except LaunchError as error:
            self._failures[host] = str(error)
            self._hurry()
            return
        configuration = self._configuration(index, host)
        starter: Starter | ProvidedAgent
        if self.provided is not None:
            starter = self.provided.start(
                host.name, command, configuration, self._on_end
            )
        else:
            argv = launching.ssh_command(ssh, host.name, command)
            starter = Starter(self._loop, argv, configuration, self._on_end)
        self._starters[starter] = [host]

    def _start_over_srun(self) -> None:
        names = [host.name for host in self.hosts]
        for host in self.hosts:
            host.rendezvous = self._listen_for(host.name)
        command = launching.agent_command(self._spec.reach.python)
        argv = launching.srun_command(names, command)
        hosts = self._remote()
        configuration = self._configuration(None, hosts[0])
        starter = Starter(self._loop, argv, configuration, self._on_end)
        self._starters[starter] = hosts

    def _await_others(self) -> None:
        address = planning.endpoint(self._spec)
        host, port = addresses.host_and_port(address) or ("", 0)
        found = address_of_rank_0(host, self._config)
        self._server.add_listener(listen_tcp(found, port, _BACKLOG))

    def _listen_for(self, peer: str) -> str:
        """Listens where `peer` can connect to; returns that address.

        Peers share a port if one address of this host leads to them.
        """
        interface = self._config.interface
        try:
            own = interfaces.address_to_listen_at([peer], interface)
        except LaunchError:
            if self._plan.way != "slurm":
                raise
            # Slurm may know its hosts by names that nobody else knows.
            own = interfaces.resolve(socket.gethostname())[0]
        if own not in self._ports:
            listener = listen_tcp(own, 0, _BACKLOG)
            self._server.add_listener(listener)
            port = listener.getsockname()[1]
            self._ports[own] = addresses.of_tcp(own, port)
        return self._ports[own]

    def _configuration(
        self, index: int | None, host: RemoteHost
    ) -> dict[str, Any]:
        """Returns what an agent gets; None: all agents get the same."""
        settings = {
            "HVD_RENDEZVOUS": host.rendezvous,
            "HVD_SECRET": self._secret.hex(),
            "HVD_START_TIMEOUT": str(self._config.start_timeout_seconds),
            "HVD_HEARTBEAT_SECONDS": str(self._config.heartbeat_seconds),
            "HVD_HEARTBEAT_TIMEOUT": str(
                self._config.heartbeat_timeout_seconds
            ),
        }
        if index is not None:
            settings["HVD_HOSTNAME"] = host.name
        for name, value in (
            ("HVD_TLS_CERT", self._config.tls_cert),
            ("HVD_TLS_KEY", self._config.tls_key),
            ("HVD_TLS_CA", self._config.tls_ca),
        ):
            if value is not None:
                settings[name] = value
        return {
            "settings": settings,
            "index": index,
            "num_hosts": len(self.hosts),
        }

    # ---- What may go wrong ----

    def _on_end(self, starter: Starter | ProvidedAgent) -> None:
        for host in self._starters.get(starter, ()):
            if not host.is_connected:
                self._failures.setdefault(host, starter.describe_end())
                self._hurry()

    def _hurry(self) -> None:
        soon = time.monotonic() + _MORE_FAILURES_SECONDS
        self._gives_up_at = min(self._gives_up_at, soon)

    def _why_not(self, identity: Identity) -> str | None:
        count, index = len(self.hosts), identity.rank
        who = f"host {index} of {identity.size} ({identity.process})"
        may_grow = self._plan.may_grow
        if index >= count or (identity.size != count and not may_grow):
            return f"The job has {count} hosts. Received: {who}."
        host = self.hosts[index]
        if isinstance(host, LocalHost):
            return f"Host {index} runs the job itself. Received: {who}."
        assert isinstance(host, RemoteHost)
        if host.is_connected and not (may_grow and host.has_ended()):
            return (
                f"Host {index} is there already: {host.name}, pid {host.pid}. "
                f"Received: {who}."
            )
        return None

    def _remote(self) -> list[RemoteHost]:
        return [host for host in self.hosts if isinstance(host, RemoteHost)]

    def _time_left(self) -> float:
        return max(0.0, self._gives_up_at - time.monotonic())
