"""What MPICH's process manager may answer, or not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hvd_keras._rendezvous import pmi
from hvd_keras.exceptions import LaunchError, StalledError

Pipe = tuple[dict[str, str], socket.socket]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    rank, manager = socket.socketpair()
    yield {"PMI_FD": str(rank.fileno())}, manager
    rank.close()
    manager.close()


def test_value_of_rank_0_comes_back(pipe: Pipe) -> None:
    environ, manager = pipe
    manager.sendall(
        b"cmd=my_kvsname kvsname=kvs_1\n"
        b"cmd=put_result rc=0 msg=success\n"
        b"cmd=barrier_out rc=0\n"
        b"cmd=get_result rc=0 msg=success value=tcp:a:1/ab\n"
    )
    assert pmi.share(environ, "tcp:a:1/ab", 5) == "tcp:a:1/ab"
    assert manager.recv(4096).decode().splitlines() == [
        "cmd=get_my_kvsname",
        "cmd=put kvsname=kvs_1 key=hvd_keras value=tcp:a:1/ab",
        "cmd=barrier_in",
        "cmd=get kvsname=kvs_1 key=hvd_keras",
    ]


def test_silent_manager_is_no_endless_wait(pipe: Pipe) -> None:
    environ, manager = pipe
    manager.sendall(b"cmd=my_kvsname kvs")
    with pytest.raises(StalledError, match=r"within 0\.2 s"):
        pmi.share(environ, None, 0.2)


@pytest.mark.parametrize(
    "answer",
    [
        b"cmd=response_to_init rc=0\n",
        b"cmd=my_kvsname kvsname=k\ncmd=barrier_out rc=-1\n",
        b"nonsense\n",
        b"\n",
    ],
)
def test_other_answer_is_an_error(pipe: Pipe, answer: bytes) -> None:
    environ, manager = pipe
    manager.sendall(answer)
    with pytest.raises(LaunchError, match="HVD_RENDEZVOUS"):
        pmi.share(environ, None, 5)
