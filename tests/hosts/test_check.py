"""`hvdrun --check -H` tries the hosts, and the network between them."""

from __future__ import annotations

import platform
import re

from network import Network, finish, wait_for


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
