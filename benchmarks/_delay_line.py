"""Forwards frames between two interfaces, each after a delay.

    python benchmarks/_delay_line.py INTERFACE INTERFACE MILLISECONDS

It stands for a long cable, where the kernel has no such queue.
"""

from __future__ import annotations

import collections
import select
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15  # a header says what the hardware would still fill in
_PACKET_IGNORE_OUTGOING = 23
_MAX_FRAME = 80_000


def _end(interface: str) -> socket.socket:
    protocol = socket.htons(_ALL_PROTOCOLS)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol)
    for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING):
        sock.setsockopt(_SOL_PACKET, option, 1)
    sock.bind((interface, 0))
    return sock


def main(first: str, second: str, milliseconds: float) -> None:
    one, other = _end(first), _end(second)
    towards = {one: other, other: one}
    frames: collections.deque[tuple[float, socket.socket, bytes]]
    frames = collections.deque()
    while True:
        wait = max(0.0, frames[0][0] - time.monotonic()) if frames else None
        for sock in select.select([one, other], [], [], wait)[0]:
            frame = sock.recv(_MAX_FRAME)
            due = time.monotonic() + milliseconds / 1e3
            frames.append((due, towards[sock], frame))
        while frames and frames[0][0] <= time.monotonic():
            _, sock, frame = frames.popleft()
            sock.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
