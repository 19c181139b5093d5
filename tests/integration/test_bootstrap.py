"""The rendezvous server: it serves ranks, and nobody else."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hvd_keras import _bootstrap
from hvd_keras._bootstrap import local_server, wire
from hvd_keras._bootstrap.client import Rendezvous, parse_secret, report
from hvd_keras._bootstrap.server import ExchangeServer
from hvd_keras._bootstrap.topology import Topology
from hvd_keras._bootstrap.wire import FrameType, Identity, Role
from hvd_keras.config import Config
from hvd_keras.exceptions import (
    ConfigError,
    HvdError,
    InternalError,
    LaunchError,
    MismatchError,
    PeerLostError,
    StalledError,
)

SECRET = bytes(range(32))
SIZE = 3


class Served:
    """A server in a thread, and clients for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reports: list[tuple[int, str]] = []
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(100)
        self.server = ExchangeServer(
            listener, SECRET, SIZE, lambda *report: self.reports.append(report)
        )
        self._calls: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.server.step(0.02)
            while self._calls:
                self._calls.pop()()
        self.server.close()

    def rank_exited(self, rank: int, what: str) -> None:
        self._calls.append(lambda: self.server.rank_exited(rank, what))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def join(
        self, rank: int, generation: int = 1, **options: Any
    ) -> Rendezvous:
        options.setdefault("timeout_seconds", 10.0)
        size = options.pop("size", SIZE)
        secret = options.pop("secret", SECRET)
        identity = Identity(Role.MEMBER, rank, size, generation, 100 + rank)
        return Rendezvous(self.path, secret, identity, **options)

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(self.path)
        return sock

    def proved(self, rank: int, generation: int = 1) -> socket.socket:
        """A raw connection that has done the handshake."""
        sock = self.raw()
        nonce = _read(sock, wire.HELLO_BYTES)[len(wire.MAGIC) :]
        identity = Identity(Role.MEMBER, rank, SIZE, generation, 1)
        sock.sendall(wire.proof(SECRET, nonce, identity))
        _read(sock, wire.MAC_BYTES)
        return sock


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = sock.recv(num_bytes - len(data))
        assert part, "the server hung up"
        data += part
    return data


def _is_hung_up(sock: socket.socket, seconds: float = 10) -> bool:
    sock.settimeout(seconds)
    try:
        while True:
            if not sock.recv(4096):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # Names of sockets must be short.
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    path = directory / f"server.{os.getpid()}"
    found = Served(str(path))
    yield found
    found.close()
    path.unlink()


def exchange_all(served: Served, generation: int = 1) -> None:
    """A whole generation must work, with two exchanges."""

    def rank(number: int) -> list[list[bytes]]:
        with served.join(number, generation) as rendezvous:
            return [
                rendezvous.exchange(b"%d" % number),
                rendezvous.exchange(b"x" * number),
            ]

    with ThreadPoolExecutor(SIZE) as pool:
        for values in pool.map(rank, range(SIZE)):
            assert values == [[b"0", b"1", b"2"], [b"", b"x", b"xx"]]


def outcomes(*calls: Callable[[], object]) -> list[object]:
    """What the calls, made together, return or raise."""

    def guarded(call: Callable[[], object]) -> object:
        try:
            return call()
        except HvdError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(guarded, calls))


def test_all_ranks_get_all_values_in_every_generation(served: Served) -> None:
    for generation in (1, 2, 3):
        exchange_all(served, generation)


def test_largest_value_passes_and_a_larger_one_does_not(
    served: Served,
) -> None:
    value = b"v" * wire.MAX_VALUE_BYTES

    def rank(number: int) -> Callable[[], object]:
        return lambda: served.join(number).exchange(value)

    assert outcomes(*map(rank, range(SIZE))) == [[value] * SIZE] * SIZE
    with pytest.raises(InternalError, match="at most"):
        served.join(0, 2).exchange(value + b"v")


# ---- Who does not belong to the job ----


def test_wrong_secret_is_refused(served: Served) -> None:
    for secret in (bytes(32), SECRET[:-1] + b"\0", b""):
        with pytest.raises(LaunchError, match="HVD_SECRET"):
            served.join(1, secret=secret)
    exchange_all(served)


def test_client_refuses_a_server_without_the_secret(tmp_path: Path) -> None:
    path = f"/tmp/impostor.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    heard = []

    def serve() -> None:
        sock, _ = listener.accept()
        sock.sendall(wire.MAGIC + bytes(wire.NONCE_BYTES))
        proof = _read(sock, wire.PROOF_BYTES)
        # Its own MAC sent back must not convince it.
        sock.sendall(proof[-wire.MAC_BYTES :])
        heard.append(sock.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    identity = Identity(Role.MEMBER, 0, SIZE, 1, 1)
    with pytest.raises(LaunchError, match="must know HVD_SECRET"):
        Rendezvous(path, SECRET, identity, timeout_seconds=5)
    thread.join(5)
    os.unlink(path)
    listener.close()
    assert heard == [b""]


def test_replayed_and_altered_proofs_are_refused(served: Served) -> None:
    sock = served.raw()
    nonce = _read(sock, wire.HELLO_BYTES)[len(wire.MAGIC) :]
    identity = Identity(Role.MEMBER, 0, SIZE, 1, 1)
    proof = wire.proof(SECRET, nonce, identity)
    replay = served.raw()
    replay.sendall(proof)
    assert _is_hung_up(replay)
    for at in range(0, wire.PROOF_BYTES, 7):
        altered = bytearray(proof)
        altered[at] ^= 1
        other = served.raw()
        other.sendall(altered)
        assert _is_hung_up(other), at
    sock.close()
    exchange_all(served)


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_is_refused_and_nothing_is_answered(
    served: Served, junk: bytes
) -> None:
    sock = served.raw()
    _read(sock, wire.HELLO_BYTES)
    with contextlib.suppress(ConnectionError):
        sock.sendall(junk * 10000)
    sock.settimeout(10)
    with contextlib.suppress(ConnectionError):
        assert sock.recv(1) == b""
    exchange_all(served)


def test_random_bytes_do_no_harm(served: Served) -> None:
    for _ in range(100):
        with served.raw() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(os.urandom(200))
    for rank in range(20):
        sock = served.proved(rank % SIZE, 7 + rank)
        with contextlib.suppress(ConnectionError):
            sock.sendall(os.urandom(500))
        sock.close()
    exchange_all(served)


def test_truncated_handshakes_do_no_harm(served: Served) -> None:
    for num_bytes in range(0, wire.PROOF_BYTES, 5):
        sock = served.raw()
        sock.sendall(b"p" * num_bytes)
        sock.close()
    exchange_all(served)


@pytest.mark.parametrize("length", [1 << 17, 1 << 31, (1 << 32) - 1])
def test_oversized_frame_is_refused_before_it_is_stored(
    served: Served, length: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sock = served.proved(0)
    sock.sendall(struct.pack("!BI", FrameType.EXCHANGE, length))
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            sock.sendall(bytes(1 << 16))
    assert _is_hung_up(sock)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 20 << 10  # KiB
    exchange_all(served, generation=2)


@pytest.mark.parametrize(
    "frame",
    [
        wire.frame(FrameType.EXCHANGE, b"short"),
        wire.frame(FrameType.EXCHANGE, wire.EXCHANGE_HEADER.pack(5, 1000, 0)),
        wire.frame(FrameType.RESULT, b"not for ranks to say"),
        b"\x63\0\0\0\0",
    ],
)
def test_senseless_frame_ends_that_generation_alone(
    served: Served, frame: bytes
) -> None:
    sock = served.proved(0)
    sock.sendall(frame)
    assert _is_hung_up(sock)
    with pytest.raises(PeerLostError, match="Rank 0"):
        served.join(1).exchange(b"")
    exchange_all(served, generation=2)


def test_slow_client_is_thrown_out_and_holds_up_nobody(
    served: Served,
) -> None:
    started = time.monotonic()
    sock = served.raw()
    _read(sock, wire.HELLO_BYTES)
    exchange_all(served)
    assert time.monotonic() - started < 2
    closed_after = None
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 10:
            sock.sendall(b"s")
            time.sleep(0.2)
    closed_after = time.monotonic() - started
    assert 4 < closed_after < 7
    exchange_all(served, generation=2)


def test_many_idle_connections_keep_no_rank_out(served: Served) -> None:
    idle = []
    for _ in range(150):
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(served.path)
        idle.append(sock)
    started = time.monotonic()
    for generation in (1, 2):
        exchange_all(served, generation)
    for sock in idle:
        sock.close()
    assert time.monotonic() - started < 4


# ---- Ranks that fail ----


def test_rank_that_hangs_up_is_named_to_the_others(served: Served) -> None:
    started = time.monotonic()

    def leave() -> None:
        sock = served.proved(2)
        time.sleep(0.2)
        sock.close()

    first, second, _ = outcomes(
        lambda: served.join(0).exchange(b""),
        lambda: served.join(1).exchange(b""),
        leave,
    )
    for error in (first, second):
        assert isinstance(error, PeerLostError)
        assert "Rank 2 went away" in str(error)
    assert time.monotonic() - started < 2


def test_exit_that_the_launcher_saw_is_quoted_then_and_later(
    served: Served,
) -> None:
    served.rank_exited(1, "(pid 7) was killed by SIGKILL")
    time.sleep(0.1)
    for rank, generation in ((0, 1), (2, 1), (0, 2)):
        with pytest.raises(PeerLostError, match=r"Rank 1 .*SIGKILL"):
            served.join(rank, generation).exchange(b"")


def test_abort_gives_its_reason_to_the_others(served: Served) -> None:
    def abort() -> None:
        with served.join(1):
            raise MismatchError("wrong day")

    first, second = outcomes(lambda: served.join(0).exchange(b""), abort)
    assert isinstance(first, PeerLostError)
    assert "Rank 1" in str(first)
    assert "MismatchError: wrong day" in str(first)
    assert isinstance(second, MismatchError)
    # It may still go on: that is no failure of the process.
    assert served.reports == []


def test_report_is_passed_on_before_the_reporter_goes_on(
    served: Served,
) -> None:
    identity = Identity(Role.MEMBER, 2, SIZE, 1, 1)
    report(served.path, SECRET, identity, "ValueError: odd")
    assert served.reports == [(2, "ValueError: odd")]
    report(served.path, bytes(32), identity, "from a stranger")
    report("/nowhere", SECRET, identity, "to nobody")
    assert len(served.reports) == 1
    exchange_all(served)


def test_missing_rank_is_noticed_and_then_named(served: Served) -> None:
    notices: list[str] = []
    started = time.monotonic()
    options: dict[str, Any] = {"timeout_seconds": 0.8, "warning_seconds": 0.3}
    errors = outcomes(
        lambda: served.join(0, on_notice=notices.append, **options).exchange(
            b""
        ),
        lambda: served.join(2, **options).exchange(b""),
    )
    for error in errors:
        assert isinstance(error, StalledError)
        assert "Missing ranks: 1; waiting ranks: 0, 2" in str(error)
    assert 0.7 < time.monotonic() - started < 3
    assert len(notices) == 1
    assert "Missing ranks: 1" in notices[0]
    # The one that comes too late hears the same.
    with pytest.raises(StalledError, match="Missing ranks: 1"):
        served.join(1).exchange(b"")


def test_second_process_with_the_same_rank_is_refused(
    served: Served,
) -> None:
    with served.join(0), pytest.raises(LaunchError, match="pid 100"):
        served.join(0).exchange(b"")
    exchange_all(served, generation=2)
    with pytest.raises(LaunchError, match="is there already"):
        served.join(0, generation=2).exchange(b"")


def test_wrong_size_is_refused(served: Served) -> None:
    with pytest.raises(MismatchError, match="The job has 3 ranks"):
        served.join(0, size=4).exchange(b"")
    exchange_all(served)


def test_server_that_ends_is_a_lost_peer(served: Served) -> None:
    def end() -> None:
        time.sleep(0.2)
        served.close()

    error, _ = outcomes(lambda: served.join(0).exchange(b""), end)
    assert isinstance(error, PeerLostError)
    assert "server" in str(error)


def test_no_server_is_an_error_at_once() -> None:
    identity = Identity(Role.MEMBER, 0, 2, 1, 1)
    started = time.monotonic()
    with pytest.raises(LaunchError, match="must listen at '/nowhere'"):
        Rendezvous("/nowhere", SECRET, identity, timeout_seconds=60)
    with pytest.raises(StalledError, match="has rank 0 called"):
        Rendezvous(
            "/nowhere",
            SECRET,
            identity,
            timeout_seconds=0.3,
            server_may_come_later=True,
        )
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("text", [None, "", "00", "zz" * 32, "0" * 63])
def test_secret_must_be_64_digits_and_is_not_shown(text: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_secret(text)
    assert "64 hexadecimal digits" in str(raised.value)
    assert "zz" not in str(raised.value)


# ---- Without hvdrun ----


@pytest.fixture
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(f"/tmp/hvd-test-{os.getpid()}")
    path.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    for file in path.glob("hvd/*"):
        file.unlink()
    (path / "hvd").rmdir()
    path.rmdir()


def _join(rank: int, generation: int, job: str = "job 1") -> list[bytes]:
    topology = Topology(rank, 2, rank, 2, launcher="x", job_identity=job)
    config = Config(start_timeout_seconds=10.0)
    with _bootstrap.join(topology, config, generation, print) as rendezvous:
        return rendezvous.exchange(b"%d" % rank)


def test_rank_0_serves_where_there_is_no_hvdrun(
    runtime_directory: Path,
) -> None:
    for generation in (1, 2):
        assert (
            outcomes(
                lambda: _join(1, generation),  # noqa: B023
                lambda: _join(0, generation),  # noqa: B023
            )
            == [[b"0", b"1"]] * 2
        )
    directory = runtime_directory / "hvd"
    assert directory.stat().st_mode & 0o777 == 0o700
    deadline = time.monotonic() + 5
    while list(directory.iterdir()):
        assert time.monotonic() < deadline, "the socket is left behind"
        time.sleep(0.01)


def test_socket_of_a_crashed_job_is_replaced(runtime_directory: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(local_server.socket_path("job 1", 1))
    stale.close()
    results = outcomes(lambda: _join(1, 1), lambda: _join(0, 1))
    assert results == [[b"0", b"1"]] * 2


def test_two_jobs_of_one_name_are_an_error(runtime_directory: Path) -> None:
    path = local_server.socket_path("job 1", 1)
    live = socket.socket(socket.AF_UNIX)
    live.bind(path)
    live.listen()
    with pytest.raises(LaunchError, match="another live job"):
        _join(0, 1)
    live.close()


def test_directory_that_others_may_enter_is_refused(
    runtime_directory: Path,
) -> None:
    directory = runtime_directory / "hvd"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(LaunchError, match="mode 0700"):
        _join(0, 1)
