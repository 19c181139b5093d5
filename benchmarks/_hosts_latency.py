"""One rank of `hosts.py`: times a small allreduce and the network's round trip.

    hvdrun ... python benchmarks/_hosts_latency.py ADDRESS PORT CALLS

The first rank of the first host listens there for that of the last host, and
answers its bytes. Both are chains: the time of one is that of its chain over
the length. Rank 0 prints a JSON line with the milliseconds of each.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

import _common
import tensorflow as tf

import hvd_keras as hvd

NUM_WARM = 3
CHAIN = 50  # one needs the result of the one before


def main(address: str, port: int, num_calls: int) -> None:
    hvd.init()
    is_server = hvd.rank() == 0
    is_client = hvd.local_rank() == 0 and hvd.cross_rank() == 1
    if is_server:
        listener = socket.create_server((address, port))
    _common.wait_for_all()
    peer = None
    if is_server:
        peer, _ = listener.accept()
    elif is_client:
        peer = socket.create_connection((address, port))
    if peer is not None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @tf.function
    def reduce(x: tf.Tensor) -> tf.Tensor:
        for i in range(CHAIN):
            x = hvd.allreduce(x, op=hvd.Average, name=f"small_{i}")
        return x

    def ping() -> None:
        if peer is None:
            return
        for _ in range(CHAIN):
            if is_client:
                peer.sendall(b"ping")
                peer.recv(4)
            else:
                peer.sendall(peer.recv(4))

    value = tf.constant(1.0)
    seconds: dict[str, list[float]] = {"ping": [], "allreduce": []}
    for i in range(NUM_WARM + num_calls):
        for name, call in (
            ("ping", ping),
            ("allreduce", lambda: reduce(value)),
        ):
            _common.wait_for_all()
            start = time.perf_counter()
            call()
            if i >= NUM_WARM:
                seconds[name].append((time.perf_counter() - start) / CHAIN)
    pings = _common.gather_over_ranks(seconds["ping"])
    reduces = _common.gather_over_ranks(seconds["allreduce"])
    if hvd.rank() == 0:
        line = {
            "ping_ms": (1e3 * pings.max(axis=0)).tolist(),
            "allreduce_ms": (1e3 * reduces.max(axis=0)).tolist(),
        }
        print(json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
