"""A job whose hosts speak TLS to each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import certificates
from network import ADDRESSES, Network, finish, free_port, python

_RANK = """
    import numpy as np
    import hvd_keras as hvd
    from hvd_keras import _native
    for sets in ([[0, 2], [1, 3]], []):  # leaders of sets meet, too
        hvd.init(process_sets=sets)
        for step in range(50):
            (sums,) = _native.core().allreduce(
                "x", [np.full(1000, hvd.rank() + step, "f4")], 1
            )
            assert (sums == 6 + 4 * step).all()
        hvd.shutdown()
    print("all steps")
"""


def test_job_runs_over_tls_and_others_are_refused(
    network: Network, secret: str, tmp_path: Path
) -> None:
    tls = certificates.make(tmp_path / "tls")
    other = certificates.make(tmp_path / "other")
    names = ("HVD_TLS_CERT", "HVD_TLS_KEY")
    endpoint = f"{ADDRESSES[0]}:{free_port()}"

    def start(host: int, **settings: str) -> subprocess.Popen[str]:
        return network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *python(_RANK),
            HVD_SECRET_FILE=secret, **settings,
        )  # fmt: skip

    job = start(0, **tls)
    strangers = {
        "must speak TLS 1.3 and show a certificate of HVD_TLS_CA": start(
            1, **other
        ),
        "must accept HVD_TLS_CERT": start(
            1, **tls | {name: other[name] for name in names}
        ),
        "It may wait for TLS": start(1),
    }
    for text, stranger in strangers.items():
        status, _, stderr = finish(stranger)
        assert status == 2
        assert text in stderr
        assert len(stderr.splitlines()) == 1
    second = start(1, **tls)
    status, stdout, stderr = finish(job, 60)
    assert status == 0, stderr
    assert stdout.count("all steps") == 4
    assert finish(second)[0] == 0


def test_who_holds_pythons_lock_is_not_lost(
    network: Network, secret: str, tmp_path: Path
) -> None:
    code = """
        import ctypes
        import hvd_keras as hvd
        hvd.init()
        hvd.barrier(name="begin")
        if hvd.rank() == 1:
            ctypes.PyDLL(None).sleep(8)  # with the lock
        hvd.barrier(name="end")
        print("end")
    """
    settings = certificates.make(tmp_path / "tls") | {
        "HVD_HEARTBEAT_SECONDS": "0.5",
        "HVD_HEARTBEAT_TIMEOUT": "4",
    }
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "1",
            "--rdzv-endpoint", endpoint, "--", *python(code),
            HVD_SECRET_FILE=secret, **settings,
        )
        for host in (0, 1)
    ]  # fmt: skip
    status, stdout, stderr = finish(jobs[0], 60)
    assert status == 0, stderr
    assert stdout.count("end") == 2
    assert finish(jobs[1])[0] == 0
