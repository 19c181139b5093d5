"""TLS for a connection that the core uses: it knows plain sockets alone."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import TYPE_CHECKING

from hvd_keras._job.bootstrap.stream import Stream

if TYPE_CHECKING:
    import ssl

_MOST_BYTES = 256 << 10  # that wait on their way


def plain_end(sock: ssl.SSLSocket) -> socket.socket:
    """Returns a plain socket; what goes through it goes through `sock`.

    A thread carries the bytes until one side ends its connection, and then ends
    the other. It takes over `sock`.
    """
    ours, theirs = socket.socketpair()
    threading.Thread(
        target=_carry, args=(Stream(sock), Stream(ours)), daemon=True
    ).start()
    return theirs


def _carry(first: Stream, second: Stream) -> None:
    streams = (first, second)
    unsent = {first: bytearray(), second: bytearray()}  # what goes there
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while _move(first, second, unsent) and _move(second, first, unsent):
            for stream in streams:
                events = stream.send_event
                other = second if stream is first else first
                if len(unsent[other]) < _MOST_BYTES:
                    events |= selectors.EVENT_READ
                selector.modify(stream, events)
            # Bytes that TLS has decrypted already are invisible here.
            has_more = any(stream.has_more() for stream in streams)
            selector.select(0 if has_more else None)
    for stream in streams:
        stream.send(unsent[stream])
        stream.close()


def _move(
    source: Stream, target: Stream, unsent: dict[Stream, bytearray]
) -> bool:
    """Moves what it can; False if one of them has ended."""
    while len(unsent[target]) < _MOST_BYTES:
        data = source.receive(_MOST_BYTES)
        if data is None:
            break
        if not data:
            return False
        unsent[target] += data
    return target.send(unsent[target])
