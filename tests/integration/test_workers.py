"""Workers that another system has started become ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import jobs

from hvd_keras.run.hosts import workers

_RANK = """
import sys
import hvd_keras as hvd
from hvd_keras.run.hosts import workers
import json
workers.become_rank(json.loads(sys.stdin.read()))
import numpy as np
hvd.init()
from hvd_keras import _core
total = _core.allreduce("sum", [np.full(2, hvd.rank() + 1.0)], 1)[0][0]
print(hvd.rank(), hvd.local_rank(), hvd.cross_size(), total)
"""


def test_workers_meet_at_rank_0() -> None:
    at = workers.meeting_point(num_hosts=1)
    assert at.startswith("tcp:127.0.0.1:")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_RANK)],
            env=jobs.clean_environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    found = workers.variables(["host", "host"], at, "Our system")
    for rank, own in zip(ranks, found, strict=True):
        assert rank.stdin is not None
        rank.stdin.write(json.dumps(own))
        rank.stdin.close()
        rank.stdin = None
    outputs = [rank.communicate(timeout=30) for rank in ranks]
    assert [out for out, _ in outputs] == ["0 0 1 3.0\n", "1 1 1 3.0\n"]
    assert "ranks from Our system" in outputs[0][1]


def test_ranks_of_a_host_follow_each_other() -> None:
    assert workers.by_host(["b", "a", "b", "a"]) == [0, 2, 1, 3]
    found = workers.variables(["b", "b", "a"], "tcp:b:1", "Our system")
    places = [
        (one["HVD_LOCAL_RANK"], one["HVD_LOCAL_SIZE"], one["HVD_CROSS_RANK"])
        for one in found
    ]
    assert places == [("0", "2", "0"), ("1", "2", "0"), ("0", "1", "1")]
    assert len({one["HVD_SECRET"] for one in found}) == 1
