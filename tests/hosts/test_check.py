"""`hvdrun --check -H` tries the hosts, and the network between them."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from network import ROOT, Network, finish, wait_for


def test_hosts_and_pairs_are_described(network: Network) -> None:
    job = network.hvdrun(0, "--check", "-H", "hosta,hostb")
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    first, second, pair = stdout.splitlines()[:3]
    python = f"Python {platform.python_version()}"
    assert first.startswith(f"hosta: this host, {python}, ")
    assert re.match(rf"hostb: clock [+-][\d.]+ ms, {python}, ", second)
    assert re.fullmatch(r"hosta - hostb: round trip \d+ us, \d+ MB/s", pair), (
        stdout
    )
    assert int(pair.split()[-2]) > 10
    wait_for(lambda: network.processes("hvd_keras.run") == [])


def test_host_that_cannot_be_reached_is_named_with_advice(
    network: Network,
) -> None:
    job = network.hvdrun(0, "--check", "-H", "hosta,hostb", "--ssh-port", "9")
    status, stdout, stderr = finish(job)
    assert status == 1, stderr
    assert "hostb: NOT REACHED: ssh ended with status 255: " in stdout
    assert "advice: `ssh hostb true` must work" in stdout


def test_unequal_versions_and_a_slow_network_get_advice(
    network: Network, tmp_path: Path
) -> None:
    # A Python of the second host that finds another Keras first.
    (tmp_path / "keras-0.0.1.dist-info").mkdir()
    (tmp_path / "keras-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: keras\nVersion: 0.0.1\n"
    )
    other = tmp_path / "python"
    other.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}:{ROOT} exec {sys.executable} "$@"\n'
    )
    other.chmod(0o755)
    with network.shaped("100mbit"):
        status, stdout, stderr = finish(
            network.hvdrun(
                0, "--check", "-H", "hosta,hostb", "--remote-python", str(other)
            )
        )
    assert status == 0, stderr
    assert "advice: All hosts need one version of Keras: " in stdout
    assert "0.0.1 on hostb." in stdout
    assert "between hosta and hostb is slow" in stdout
