"""`hvdrun --check -H a,b`: tries every host, and the network between them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_keras._common.terminal import printable
from hvd_keras._records.evidence import Part
from hvd_keras._rendezvous import addresses, interfaces, tls
from hvd_keras._rendezvous.listener import Listener
from hvd_keras._rendezvous.server import Server
from hvd_keras.config import Config
from hvd_keras.exceptions import HvdError, LaunchError
from hvd_keras.run.hosts import launching, placement, planning, probe
from hvd_keras.run.hosts.host import Host, LocalHost, RemoteHost
from hvd_keras.run.hosts.link import Loss
from hvd_keras.run.hosts.probe import SpeedServer
from hvd_keras.run.job.gathering import Gathering
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.system.loop import Loop

_ANSWER_SECONDS = 20.0
_FAREWELL_SECONDS = 5.0
_NUM_CLOCK_READINGS = 5
# Beyond these there is a line of advice.
_MAX_CLOCK_SECONDS = 1.0
_MAX_ROUND_TRIP_SECONDS = 1e-3
_MIN_BYTES_PER_SECOND = 100e6


@dataclasses.dataclass
class _Found:
    """What was found out on one host."""

    versions: dict[str, str]
    clock_seconds: float  # ahead of this host's


class HostsCheck:
    """One check of several hosts. Single-threaded."""

    def __init__(self, spec: JobSpec, config: Config) -> None:
        listed = planning.listed_hosts(spec) or []
        names = [(name, 1) for name, _ in listed]
        plan = placement.of_hosts(names, None)
        self._reach = spec.reach
        self._secret = secrets.token_bytes(32)
        self._loop = Loop()
        self._advice: list[str] = []
        self._answer: Mapping[str, Any] | None = None
        self._lost: dict[str, str] = {}
        self._is_ending = False
        plan = dataclasses.replace(plan, way="ssh", num_ranks=None)
        self._gathering = Gathering(self._loop, self, plan, spec, config)
        self._hosts = self._gathering.hosts
        listener = Listener(backlog=len(names) + 8)
        self._server = Server(
            listener.socket,
            self._secret,
            num_guests=len(names),
            tls=tls.context(config, is_server=True),
            on_agent=self._gathering.take_agent,
        )
        self._loop.watch(self._server, lambda: None)
        self._gathering.serve(self._server, self._secret)

    def print_report(self) -> int:
        """Prints a line for each host and each pair, and advice.

        Returns:
            0 if a job can run on all of them, else 1.
        """
        try:
            failures = self._gathering.try_all()
            reached = [h for h in self._hosts if h.name not in failures]
            self._print_hosts(reached)
            for name, why in failures.items():
                _show(f"{name}: NOT REACHED: {why}")
                self._advice.append(
                    f"`ssh {name} true` must work without a question."
                )
            pairs = list(itertools.combinations(reached, 2))
            for first, second in pairs:
                self._print_pair(first, second)
        finally:
            self._is_ending = True
            for host in self._hosts:
                host.end(0)
            self._gathering.close(_FAREWELL_SECONDS)
            self._server.close()
        for line in self._advice:
            _show(f"advice: {line}")
        return 1 if failures or self._lost else 0

    # ---- What agents say; see `AgentWatcher` ----

    def host_is_ready(self, host: RemoteHost) -> None:
        pass

    def host_has_checked(
        self, host: RemoteHost, answer: Mapping[str, Any]
    ) -> None:
        self._answer = answer

    def host_is_lost(self, host: RemoteHost, loss: Loss) -> None:
        if self._is_ending:
            return
        self._lost[host.name] = loss.text
        self._gathering.note_loss(host, loss.text)

    def host_failed(self, host: Host, text: str, exit_status: int) -> None:
        self._lost[host.name] = text

    def host_was_signalled(self, host: RemoteHost, number: int) -> None:
        raise KeyboardInterrupt

    def rank_started(self, rank: int, pid: int) -> None: ...

    def rank_wrote(self, rank: int, stream: int, data: bytes) -> None: ...

    def rank_exited(
        self, rank: int, exit_status: int, killed_by: int | None
    ) -> None: ...

    def host_sent_record(self, rank: int, part: Part, data: bytes) -> None: ...

    # ---- Each host ----

    def _print_hosts(self, hosts: Sequence[Host]) -> None:
        found = {}
        for host in hosts:
            one = found[host.name] = self._look_at(host)
            shown = ", ".join(f"{n} {v}" for n, v in one.versions.items())
            clock = f"clock {one.clock_seconds * 1e3:+.1f} ms"
            if isinstance(host, LocalHost):
                clock = "this host"
            _show(f"{host.name}: {clock}, {shown}")
            if abs(one.clock_seconds) > _MAX_CLOCK_SECONDS:
                self._advice.append(f"Set the clock of {host.name}, by NTP.")
        for library in next(iter(found.values())).versions if found else ():
            versions = {n: f.versions.get(library) for n, f in found.items()}
            if len(set(versions.values())) > 1:
                shown = ", ".join(f"{v} on {n}" for n, v in versions.items())
                self._advice.append(
                    f"All hosts need one version of {library}: {shown}."
                )

    def _look_at(self, host: Host) -> _Found:
        if not isinstance(host, RemoteHost):
            return _Found(probe.facts()["versions"], 0.0)
        readings = []
        for _ in range(_NUM_CLOCK_READINGS):
            started = time.time()
            answer = self._ask(host, {"what": "facts"})
            ended = time.time()
            offset = float(answer["time"]) - (started + ended) / 2
            readings.append((ended - started, offset))
        # The fastest answer says the most.
        return _Found(dict(answer["versions"]), min(readings)[1])

    # ---- Each pair ----

    def _print_pair(self, first: Host, second: Host) -> None:
        pair = f"{first.name} - {second.name}"
        try:
            speed = self._measure(first, second)
        except (HvdError, OSError) as error:
            _show(f"{pair}: NOT CONNECTED: {error}")
            self._lost[pair] = str(error)
            self._advice.append(
                f"No firewall may be between {first.name} and {second.name}; "
                "or choose a network with --interface."
            )
            return
        trip, rate = speed.round_trip_seconds, speed.bytes_per_second
        _show(f"{pair}: round trip {trip * 1e6:.0f} us, {rate / 1e6:.0f} MB/s")
        if rate < _MIN_BYTES_PER_SECOND or trip > _MAX_ROUND_TRIP_SECONDS:
            self._advice.append(
                f"The network between {first.name} and {second.name} is slow "
                "for training; is there a faster one for --interface?"
            )

    def _measure(self, first: Host, second: Host) -> probe.Speed:
        """Has `first` measure the speed towards `second`."""
        server = None
        peer = self._address(first, second)
        if isinstance(second, RemoteHost):
            order = {"what": "serve", "peer": peer}
            address = str(self._ask(second, order)["address"])
        else:
            server = SpeedServer(peer, self._secret)
            address = server.address
        if not isinstance(first, RemoteHost):
            return probe.measure(address, self._secret)
        order = {"what": "measure", "address": address}
        self._answer = None
        first.check(order)
        if server is not None:
            with contextlib.suppress(HvdError, OSError):  # `first` says it
                server.serve()
        answer = self._await_answer(first)
        return probe.Speed(**{n: float(v) for n, v in answer.items()})

    def _address(self, host: Host, peer: Host) -> str:
        """Returns the address by which `peer` knows `host`."""
        if not isinstance(host, RemoteHost):
            found = addresses.host_and_port(peer.rendezvous)
            assert found is not None
            return found[0]
        ssh = launching.ssh_options(
            self._reach.ssh_port, self._reach.ssh_identity_file
        )
        return interfaces.resolve(launching.ssh_address(ssh, host.name))[0]

    def _ask(self, host: RemoteHost, order: Mapping[str, Any]) -> Any:
        self._answer = None
        host.check(order)
        return self._await_answer(host)

    def _await_answer(self, host: RemoteHost) -> Mapping[str, Any]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._answer is None:
            if host.has_ended() or time.monotonic() > deadline:
                raise LaunchError(f"Host {host.name} must answer.")
            self._loop.step(0.5)
            host.step()
        if "error" in self._answer:
            raise LaunchError(str(self._answer["error"]))
        return self._answer


def _show(text: str) -> None:
    print(printable(text), flush=True)
