"""Hosts train apart, and send weights when they meet."""

from __future__ import annotations

import json

import pytest
from network import ADDRESSES, Network, finish, free_port, python

EVERY = 5
STEPS = 12

# Each rank tells after which steps its weights are those of its host and of all
# ranks; and the first one how many bytes its host has sent.
_RANK = f"""
    import json, pathlib
    import keras
    import numpy as np
    import hvd_keras as hvd

    def sent():
        lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
        names = (line.partition(":") for line in lines)
        return sum(int(n.split()[8]) for k, _, n in names if "eth0" in k)

    class Note(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found = []

        def on_train_batch_end(self, batch, logs=None):
            values = [w.tobytes() for w in self.model.get_weights()]
            ranks = hvd.allgather_object([hvd.cross_rank(), values])
            host = [v for h, v in ranks if h == hvd.cross_rank()]
            alike = all(v == values for v in host)
            self.found.append([alike, all(v == values for _, v in ranks)])

    def trained(updates, callbacks):
        keras.utils.set_random_seed(1)
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((64,)), dense(2048), dense(1)])
        model.compile(
            hvd.DistributedOptimizer(
                keras.optimizers.Adam(0.01), local_updates=updates
            ),
            "mse",
        )
        model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)  # it traces
        before = sent()
        model.fit(
            x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks
        )
        hvd.barrier()
        return sent() - before, 4 * model.count_params()

    hvd.init()
    x = np.random.default_rng(hvd.rank()).normal(size=({4 * STEPS}, 64))
    note = Note()
    trained(hvd.LocalUpdates({EVERY}), [note])
    num_bytes, of_weights = trained(hvd.LocalUpdates({EVERY}), [])
    of_reductions, _ = trained(None, [])
    print(json.dumps([note.found, num_bytes / of_weights,
                      of_reductions / of_weights]))
    hvd.shutdown()
"""


def test_hosts_send_weights_only_when_they_meet(
    network: Network, secret: str
) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *python(_RANK),
            HVD_SECRET_FILE=secret,
        )
        for host in range(2)
    ]  # fmt: skip
    for job in jobs[1:] + jobs[:1]:
        status, stdout, stderr = finish(job, 200)
        assert status == 0, stderr
    lines = [line.partition("] ")[2] for line in stdout.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("[[")]
    assert len(told) == 4
    for found, num_meetings, num_reductions in told:
        meets = [step % EVERY == 0 for step in range(1, STEPS + 1)]
        assert found == [[True, met] for met in meets]
        assert num_meetings == pytest.approx(3, rel=0.1)  # the last at the end
        assert num_reductions == pytest.approx(STEPS, rel=0.1)
