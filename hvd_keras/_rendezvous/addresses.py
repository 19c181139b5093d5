"""Where a rendezvous server listens, written as a text.

`/path` and `@name` name a Unix socket, `tcp:HOST:PORT` a TCP socket. The
setting HVD_RENDEZVOUS puts `unix:` before the first two.
"""

from __future__ import annotations

import socket

from hvd_keras.exceptions import ConfigError

_TCP = "tcp:"
# A host that vanishes is noticed after a minute, if nobody sends anything.
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 20),  # seconds
    (socket.TCP_KEEPINTVL, 10),  # seconds
    (socket.TCP_KEEPCNT, 4),
)


def parse(text: str) -> str:
    """Returns the address that HVD_RENDEZVOUS names.

    Raises:
        ConfigError: It is no address.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest.startswith(("/", "@")):
        return rest
    if scheme == "tcp" and host_and_port(text) is not None:
        return text
    raise ConfigError(
        "`HVD_RENDEZVOUS` must be unix:/path/of/a/socket, unix:@name or "
        f"tcp:HOST:PORT. Received: {text!r}."
    )


def setting(address: str) -> str:
    """Returns the value of HVD_RENDEZVOUS that names `address`."""
    return address if is_tcp(address) else f"unix:{address}"


def of_tcp(host: str, port: int) -> str:
    """Returns the address of a TCP port."""
    return f"{_TCP}[{host}]:{port}" if ":" in host else f"{_TCP}{host}:{port}"


def is_tcp(address: str) -> bool:
    """Whether `address` is that of a TCP port."""
    return address.startswith(_TCP)


def host_and_port(address: str) -> tuple[str, int] | None:
    """Returns host and port of a TCP address; None if it is none."""
    host, colon, port = address.removeprefix(_TCP).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not colon or not host or not (port.isascii() and port.isdigit()):
        return None
    return (host, int(port)) if 0 < int(port) < 1 << 16 else None


def connect(address: str, timeout_seconds: float) -> socket.socket:
    """Returns a socket that is connected to `address`.

    Raises:
        OSError: Nobody listens there, or the name of the host is unknown.
    """
    host_port = host_and_port(address) if is_tcp(address) else None
    if host_port is not None:
        sock = socket.create_connection(host_port, timeout_seconds)
        tune(sock)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_seconds)
        # "@": an abstract name.
        abstract = address.startswith("@")
        sock.connect(f"\0{address[1:]}" if abstract else address)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Makes a TCP socket send small messages at once, and notice silence."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
