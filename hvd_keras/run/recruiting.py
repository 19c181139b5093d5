"""Starts the processes of an elastic job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hvd_keras._job.bootstrap.elastic_server import ElasticServer
from hvd_keras.run.fleet import Fleet
from hvd_keras.run.hosts import Host, Launch, LocalHost
from hvd_keras.run.rank import Rank
from hvd_keras.run.slots import Slot, Slots
from hvd_keras.run.standard_input import StandardInput

_NO_START_STATUS = 2  # of a process that could not be started


class Recruiter:
    """Starts members in free slots."""

    def __init__(
        self,
        ranks: list[Rank],
        slots: Slots,
        fleet: Fleet,
        server: ElasticServer,
        stdin: StandardInput,
        *,
        shows_hosts: bool,
        on_failure: Callable[[Host, str, int], None],
    ) -> None:
        """Starts nobody yet.

        Args:
            ranks: All members by their numbers; new ones are added.
            slots: Notes which are held.
            fleet: Knows the hosts.
            server: Is told of new members.
            stdin: What their standard input is.
            shows_hosts: Whether messages name the host of a member.
            on_failure: Called with a host that cannot start its members, the
                reason and their exit status.
        """
        self._ranks = ranks
        self._slots = slots
        self._fleet = fleet
        self._server = server
        self._stdin = stdin
        self._shows_hosts = shows_hosts
        self._on_failure = on_failure

    def fill(
        self, slots: Sequence[Slot], launch: Launch, *, runs: bool
    ) -> None:
        """Starts a process in each of some free slots.

        Args:
            slots: The slots.
            launch: What to start.
            runs: Whether other members train, and take newcomers in.
        """
        by_host: dict[str, list[int]] = {}
        newcomers: dict[str, list[tuple[int, int, int, int]]] = {}
        num_present = len(self._server.present())
        size = num_present + len(slots)
        for likely_rank, slot in enumerate(slots, start=num_present):
            number, index = len(self._ranks), -1
            if runs:
                index = self._free_index(slot.host)
                newcomers.setdefault(slot.host, []).append(
                    (number, max(1, likely_rank), size, index)
                )
            self._add(slot, number, index)
            by_host.setdefault(slot.host, []).append(number)
        hosts = map(self._fleet.of_slot, by_host)
        # The other hosts first, for they need longer.
        for host in sorted(hosts, key=lambda h: isinstance(h, LocalHost)):
            host.place = dataclasses.replace(
                host.place, newcomers=newcomers.get(host.name, ())
            )
            try:
                host.start(launch, self._stdin, by_host[host.name])
            except OSError as error:
                self._on_failure(host, str(error), _NO_START_STATUS)

    def _add(self, slot: Slot, number: int, index: int) -> None:
        name = slot.host if self._shows_hosts else ""
        self._ranks.append(Rank(number, name, index=index))
        self._slots.hold(slot, number)
        host = self._fleet.of_slot(slot.host)
        self._server.member_started(
            number,
            slot.host,
            index,
            is_beside_server=isinstance(host, LocalHost),
        )
        host.place = dataclasses.replace(
            host.place,
            members=(*host.place.members, number),
            slots=(*host.place.slots, slot.index),
        )

    def _free_index(self, host: str) -> int:
        """Returns the lowest slot of a host that no running member has."""
        taken = {
            self._ranks[number].index
            for number in self._fleet.of_slot(host).place.members
            if not self._ranks[number].has_ended
        }
        return min(set(range(len(taken) + 1)) - taken)
