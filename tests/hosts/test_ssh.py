"""`hvdrun -H` starts ranks on another host, over a real sshd."""

from __future__ import annotations

import re
import sys

import pytest
from network import ADDRESSES, Network, finish, python

_PLACE = """
    import os, socket
    names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME"
    print(*[os.environ["HVD_" + name] for name in names.split()])
"""
_MEET = """
    import os
    from hvd_keras import _rendezvous
    from hvd_keras.config import Config
    config = Config.from_environ(os.environ)
    topology = _rendezvous.detect(os.environ)
    with _rendezvous.join(topology, config, 0, print) as meeting:
        print(meeting.exchange(b"%d" % topology.rank))
"""


def test_ranks_know_their_places_on_both_hosts(network: Network) -> None:
    job = network.hvdrun(0, "-H", "hosta:2,hostb:2", "--", *python(_PLACE))
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == [
        "[0] 0 4 0 2 0 2 hosta",
        "[1] 1 4 1 2 0 2 hosta",
        "[2] 2 4 0 2 1 2 hostb",
        "[3] 3 4 1 2 1 2 hostb",
    ]
    assert re.search(
        r"4 ranks on 2 hosts: hosta \(ranks 0-1, .*\), hostb \(ranks 2-3,",
        stderr,
    )


def test_ranks_meet(network: Network) -> None:
    job = network.hvdrun(
        0, "-np", "3", "-H", "hosta:2,hostb:2", "--", *python(_MEET)
    )
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    expected = [f"[{rank}] [b'0', b'1', b'2']" for rank in range(3)]
    assert sorted(stdout.splitlines()) == expected


def test_ranks_of_both_hosts_compute_together(network: Network) -> None:
    code = """
        import numpy as np
        import hvd_keras as hvd
        from hvd_keras import _native
        hvd.init()
        (sums,) = _native.core().allreduce("x", [np.arange(3.0)], 1)
        print(sums.tolist())
    """
    job = network.hvdrun(0, "-H", "hosta:1,hostb:1", "--", *python(code))
    status, stdout, stderr = finish(job, 60)
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == [
        "[0] [0.0, 2.0, 4.0]",
        "[1] [0.0, 2.0, 4.0]",
    ]


def test_ranks_of_other_hosts_tell_how_they_are_doing(network: Network) -> None:
    code = """
        import time
        import hvd_keras as hvd
        hvd.init()
        time.sleep(4)
    """
    options = ["--status", "--status-seconds", "1"]
    job = network.hvdrun(
        0, "-H", "hosta:1,hostb:1", *options, "--", *python(code)
    )
    status, _, stderr = finish(job, 60)
    assert status == 0, stderr
    for rank, host in enumerate(("hosta", "hostb")):
        assert re.search(rf"^ *{rank} +{host} +0 +0.0 .* GB$", stderr, re.M), (
            stderr
        )


def test_all_ranks_may_be_elsewhere(network: Network) -> None:
    job = network.hvdrun(0, "-H", "hostb:2", "--", *python(_MEET))
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    assert stdout.count("[b'0', b'1']") == 2


def test_environment_and_directory_are_those_of_hvdrun(
    network: Network,
) -> None:
    code = """
        import os
        names = ["KERAS_BACKEND", "MY_OWN", "MY_OTHER", "SECRET_TOKEN"]
        print(os.getcwd(), [os.environ.get(name) for name in names])
        """
    job = network.hvdrun(
        0, "-x", "MY_OWN", "-x", "MY_OTHER=2", "-H", "hostb:1", "--",
        *python(code), KERAS_BACKEND="jax", MY_OWN="1", SECRET_TOKEN="3"
    )  # fmt: skip
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    assert "['jax', '1', '2', None]" in stdout
    assert "/" in stdout


def test_secret_is_in_no_command_line(network: Network) -> None:
    code = """
        import os, pathlib
        secret = os.environ["HVD_SECRET"].encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            assert secret not in path.read_bytes(), path
        for pid in (1, os.getppid()):
            environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert secret not in environ
        """
    job = network.hvdrun(0, "-H", "hosta:1,hostb:1", "--", *python(code))
    status, _, stderr = finish(job)
    assert status == 0, stderr


def test_much_output_comes_whole(network: Network) -> None:
    code = "for i in range(20000): print(i, 'x' * 90)"
    job = network.hvdrun(0, "-H", "hostb:2", "--", *python(code))
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    lines = stdout.splitlines()
    for rank in range(2):
        head = f"[{rank}] "
        own = [line.split()[1] for line in lines if line.startswith(head)]
        assert own == [str(i) for i in range(20000)]


def test_program_on_standard_input_runs_on_all_hosts(
    network: Network, tmp_path: object
) -> None:
    command = (
        f"echo 'import os; print(os.environ[\"HVD_RANK\"])' | "
        f"{sys.executable} -m hvd_keras.run -H hosta:1,hostb:1 "
        f"{sys.executable} -"
    )
    status, stdout, stderr = finish(network.start(0, "sh", "-c", command))
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == ["[0] 0", "[1] 1"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-H", "hosta:1,nobody:1", "true"], 2, "nobody"),
        (["-H", "hosta:1,nobody:1,10.98.17.3:1", "true"], 2,
         "10.98.17.3: "),
        (["-H", "hostb:1", "--ssh-port", "9", "true"], 2,
         "hostb: ssh ended with status 255: "),
        (["-H", "hostb:1", "--remote-python", "/no/python", "true"], 2,
         "--remote-python"),
        (["-H", "hostb:1", "no-such-command"], 127, "'no-such-command'"),
        (["-H", "hostb:1", "--interface", "eth9", "true"], 2,
         "`HVD_INTERFACE`"),
    ],
)  # fmt: skip
def test_what_fails_at_the_start_is_named(
    network: Network, arguments: list[str], status: int, text: str
) -> None:
    found, _, stderr = finish(network.hvdrun(0, *arguments))
    assert found == status, stderr
    assert text in stderr
    assert "Traceback" not in stderr
    assert network.processes("hvd_keras.run") == []


def test_directory_that_is_missing_there_is_named(
    network: Network, tmp_path: object
) -> None:
    command = (
        "mount -t tmpfs none /mnt && mkdir /mnt/here && cd /mnt/here && "
        f"exec {sys.executable} -m hvd_keras.run -H hostb:1 true"
    )
    status, _, stderr = finish(network.start(0, "sh", "-c", command))
    assert status == 2
    assert "host hostb: " in stderr
    assert "/mnt/here" in stderr


def test_dry_run_says_what_would_run_where(network: Network) -> None:
    job = network.hvdrun(
        0, "--dry-run", "-np", "3", "-H", "hosta:2,hostb:2", "python", "x.py"
    )
    status, stdout, _ = finish(job)
    assert status == 0
    first, second, third = stdout.splitlines()
    assert first == "command: python x.py"
    assert second == "hosta: ranks 0-1, this host"
    assert third.startswith("hostb: rank 2, over: ssh -o BatchMode=yes")


def test_only_one_address_listens(network: Network) -> None:
    code = """
        import pathlib
        for name in ("tcp", "tcp6"):
            table = pathlib.Path("/proc/net", name).read_text()
            for row in table.splitlines()[1:]:
                if row.split()[3] == "0A":
                    print("listens", row.split()[1])
        """
    job = network.hvdrun(0, "-H", "hosta:1,hostb:1", "--", *python(code))
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    own = "".join(f"{int(p):02X}" for p in reversed(ADDRESSES[0].split(".")))
    (line,) = [one for one in stdout.splitlines() if one.startswith("[0]")]
    assert line.startswith(f"[0] listens {own}:")


def test_strangers_at_the_port_harm_nobody(network: Network) -> None:
    strangers = """
    import contextlib, os
    from hvd_keras._rendezvous import addresses
    if os.environ["HVD_RANK"] == "1":
        for _ in range(100):
            sock = addresses.connect(os.environ["HVD_RENDEZVOUS"], 5)
            with sock, contextlib.suppress(ConnectionError):
                sock.sendall(os.urandom(400))  # it may hang up before
        idle = [
            addresses.connect(os.environ["HVD_RENDEZVOUS"], 5)
            for _ in range(200)
        ]
    """
    job = network.hvdrun(
        0, "-H", "hosta:1,hostb:1", "--", *python(strangers + _MEET)
    )
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    assert stdout.count("[b'0', b'1']") == 2


def test_functions_return_results_from_both_hosts(network: Network) -> None:
    code = """
        import hvd_keras as hvd
        def work(factor):
            import numpy as np
            import hvd_keras as hvd
            from hvd_keras import _native
            hvd.init()
            (sums,) = _native.core().allreduce("x", [np.ones(2)], 1)
            if factor == 0 and hvd.rank() == 1:
                raise ValueError("factor must not be 0")
            return hvd.cross_rank(), float(sums[0]) * factor
        print(hvd.run(work, (10,), hosts="hosta:1,hostb:1"))
        try:
            hvd.run(work, (0,), hosts="hosta:1,hostb:1", grace=0.2)
        except hvd.RankError as error:
            print(error.rank, repr(error.__cause__))
    """
    status, stdout, stderr = finish(network.start(0, *python(code)), 60)
    assert status == 0, stderr
    assert "[(0, 20.0), (1, 20.0)]\n" in stdout
    assert "1 ValueError('factor must not be 0')\n" in stdout
