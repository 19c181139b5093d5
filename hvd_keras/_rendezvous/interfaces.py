"""Which addresses this host has, and which of them leads to another host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator

from hvd_keras.exceptions import ConfigError, LaunchError

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s24x")
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"  # an address in no network
_ANY_PORT = 9  # nothing is sent there


def host_name() -> str:
    """Returns the name of this host, without its domain."""
    return socket.gethostname().partition(".")[0]


def resolve(host: str) -> list[str]:
    """Returns the addresses of `host`, IPv4 first.

    Raises:
        LaunchError: The name is unknown.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # such as of too long a label
        raise LaunchError(
            f"The name of a host must have an address. Received: {host!r} "
            f"({error})."
        ) from None
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return sorted(addresses, key=lambda address: ":" in address)


def is_local(address: str) -> bool:
    """Whether `address` is one of this host."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            # Every other reason is ours: the address is there.
            return error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV)
    return True


def is_this_host(host: str) -> bool:
    """Whether `host` names this host."""
    names = {"localhost", socket.gethostname(), host_name()}
    if host in names:
        return True
    try:
        return any(is_local(address) for address in resolve(host))
    except LaunchError:
        return False


def is_loopback(address: str) -> bool:
    """Whether `address` can be reached from this host alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address_towards(peer: str) -> str:
    """Returns the address of this host that `peer` (a name) can answer.

    Raises:
        LaunchError: The name is unknown, or no route leads there.
    """
    reasons = []
    for address in resolve(peer):
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, _ANY_PORT))
                return str(probe.getsockname()[0])
            except OSError as error:
                reasons.append(f"{address}: {error.strerror}")
    raise LaunchError(
        f"A route must lead to host {peer!r}. Received: {', '.join(reasons)}."
    )


def address_to_listen_at(peers: list[str], interface: str | None) -> str:
    """Returns the address of this host where `peers` can reach it.

    Args:
        peers: Names of the other hosts.
        interface: Name or address of an interface, which overrides the route.
    """
    if interface is not None:
        return address_of(interface)
    for peer in peers:
        if not is_this_host(peer):
            return address_towards(peer)
    return _LOOPBACK


def outward_address() -> str:
    """Returns an address of this host for hosts that nobody has named.

    Raises:
        LaunchError: There is none but for this host alone.
    """
    found: list[str] = []
    with contextlib.suppress(LaunchError):
        found += resolve(socket.gethostname())
    with contextlib.suppress(LaunchError):
        found.append(address_towards(_ELSEWHERE))
    for address in found:
        if not is_loopback(address):
            return address
    raise LaunchError(
        "This host must have an address that other hosts can reach. Received: "
        f"none for its name, {socket.gethostname()!r}, and no route to the "
        "outside. Set HVD_INTERFACE to the interface that they reach."
    )


def free_port(address: str) -> int:
    """Returns a port of an own address that nobody uses now."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def address_of(interface: str) -> str:
    """Returns the address of an interface, given its name or its address.

    Raises:
        ConfigError: This host has none of that name or address.
    """
    try:
        ipaddress.ip_address(interface)
    except ValueError:
        return _first_address(interface)
    if is_local(interface):
        return interface
    raise _no_interface(interface)


def name_of(interface: str) -> str:
    """Returns the name of an interface, given its name or its address.

    Raises:
        ConfigError: This host has none of that name or address.
    """
    address = address_of(interface)
    if address != interface:
        return interface
    found = device_of(address)
    if found is None:
        raise _no_interface(interface)
    return found


def device_of(address: str) -> str | None:
    """Returns the name of the interface that has `address`, if one does."""
    for _, name in socket.if_nameindex():
        if address in _addresses(name):
            return name
    return None


def _first_address(name: str) -> str:
    for address in _addresses(name):
        return address
    raise _no_interface(name)


def _addresses(name: str) -> Iterator[str]:
    """Yields the first IPv4 and all global IPv6 addresses of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = _IFREQ.pack(name.encode()[:15])
        with contextlib.suppress(OSError):  # it may have none
            reply = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
            yield socket.inet_ntoa(reply[20:24])
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    for digits, _, _, scope, _, device in rows:
        if device == name and scope != "20":  # link-local
            yield str(ipaddress.IPv6Address(bytes.fromhex(digits)))


def _no_interface(what: str) -> ConfigError:
    names = ", ".join(name for _, name in socket.if_nameindex())
    return ConfigError(
        "`HVD_INTERFACE` must be the name or the address of an interface of "
        f"this host that has an address: {names}. Received: {what!r}."
    )


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
