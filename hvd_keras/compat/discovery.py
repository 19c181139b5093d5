"""Which hosts an elastic job may use: `horovod.runner.elastic.discovery`."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_keras.run.hosts import discovery

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


class HostDiscovery:
    """Says which hosts there are. Derive others from it."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Returns the slots of each host."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Asks a program, which prints lines such as `host:4`."""

    def __init__(self, discovery_script: str, slots: int = 1) -> None:
        """Names it.

        Args:
            discovery_script: The program.
            slots: Those of hosts that it prints without a number.
        """
        self._script = discovery_script
        self._slots = slots

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        return discovery.ask(self._script, self._slots)


class FixedHosts(HostDiscovery):
    """Always says the same, until it is told otherwise."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self.set(available_hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Says these from now on."""
        self._hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        return self._hosts
