"""HVD_METRICS_PORT serves each rank's counters to Prometheus."""

from __future__ import annotations

import socket

import jobs
import pytest

CODE = """
    import os, time, urllib.request
    import numpy as np
    from prometheus_client import parser
    import hvd_keras as hvd
    from hvd_keras import _core

    hvd.init()
    if hvd.rank() == 1:
        time.sleep(0.3)
    for _ in range(3):
        _core.allreduce("a", [np.ones(250, np.float32)], 1)
    port = int(os.environ["HVD_METRICS_PORT"]) + hvd.local_rank()
    url = f"http://127.0.0.1:{port}/metrics"
    text = urllib.request.urlopen(url, timeout=5).read().decode()
    samples = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name, sample.labels.get("rank")] = sample.value
    own = str(hvd.rank())
    assert samples["hvd_collectives_total", own] == 3
    assert samples["hvd_bytes_total", own] == 3000
    assert samples["hvd_pending_requests", own] == 0
    assert samples["hvd_info", own] == 1
    waited = samples["hvd_waiting_seconds_total", own]
    if hvd.rank() == 0:
        assert waited > 0.2, waited
        assert samples["hvd_last_total", "1"] >= 1
        assert 0.2 < samples["hvd_late_seconds_total", "1"] < 20.0
        assert samples["hvd_last_total", "0"] <= 2
    else:
        assert ("hvd_last_total", "1") not in samples
    hvd.shutdown()
    try:
        urllib.request.urlopen(url, timeout=5)
    except OSError:
        print("closed")
    """


def free_ports() -> int:
    """Returns a port; it and the next one are free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_each_rank_serves_its_counters() -> None:
    job = jobs.run_python(2, CODE, HVD_METRICS_PORT=str(free_ports()))
    assert [job.lines(rank) for rank in range(2)] == [["closed"]] * 2


@pytest.mark.parametrize("taken", [True, False])
def test_training_goes_on_without_a_port(taken: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1] if taken else 65536
        job = jobs.run_python(
            1,
            "import hvd_keras as hvd\nhvd.init()\nprint('goes on')",
            HVD_METRICS_PORT=str(port),
        )
    assert job.lines(0) == ["goes on"]
    assert f"port {port} cannot be used" in job.stderr
