"""The rendezvous server serves the ranks of its job, and nobody else."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
from rendezvous_server import (
    SECRET,
    SIZE,
    Served,
    exchange_all,
    outcomes,
    read,
    report,
)

from hvd_keras import _rendezvous
from hvd_keras._common import processes
from hvd_keras._rendezvous import announcement, local_server, protocol
from hvd_keras._rendezvous.client import Rendezvous, reporter
from hvd_keras._rendezvous.listener import Listener
from hvd_keras._rendezvous.protocol import (
    FrameType,
    Identity,
    Report,
    ReportKind,
    Role,
)
from hvd_keras._rendezvous.secret import parse_secret
from hvd_keras._rendezvous.server import Server
from hvd_keras._rendezvous.topology import Topology
from hvd_keras.config import Config
from hvd_keras.exceptions import (
    ConfigError,
    InternalError,
    LaunchError,
    MismatchError,
    PeerLostError,
    StalledError,
)


def test_all_ranks_get_all_values_in_every_generation(served: Served) -> None:
    assert [exchange_all(served) for _ in range(3)] == [1, 2, 3]


def test_largest_value_passes_and_a_larger_one_does_not(
    served: Served,
) -> None:
    value = b"v" * protocol.MAX_VALUE_BYTES

    def rank(number: int) -> Callable[[], object]:
        return lambda: served.join(number).exchange(value)

    assert outcomes(*map(rank, range(SIZE))) == [[value] * SIZE] * SIZE
    with pytest.raises(InternalError, match="at most"):
        served.join(0).exchange(value + b"v")


# ---- Ranks that fail ----


@pytest.mark.timed
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


def test_exit_that_the_launcher_saw_is_quoted_at_once_and_later(
    served: Served,
) -> None:
    served.rank_exited(1, "(pid 7) was killed by SIGKILL")
    for rank, generation in ((0, 1), (2, 1), (0, 2)):
        with pytest.raises(PeerLostError, match=r"Rank 1 .*SIGKILL"):
            served.join(rank).exchange(b"")
        assert served.generations[rank] == generation


def test_abort_gives_its_reason_to_the_others(served: Served) -> None:
    def abort() -> None:
        with served.join(1):
            raise MismatchError("wrong day")

    first, second = outcomes(lambda: served.join(0).exchange(b""), abort)
    assert isinstance(first, PeerLostError)
    assert "Rank 1" in str(first)
    assert "MismatchError: wrong day" in str(first)
    assert isinstance(second, MismatchError)
    # An abort is no failure of the process, which may go on.
    assert served.reports == []


def test_report_is_passed_on_before_the_reporter_goes_on(
    served: Served,
) -> None:
    exchange_all(served)
    identity = served.identity(2)
    told = Report(ReportKind.FAILS, 2, "ValueError: odd")
    report(served.path, SECRET, identity, told)
    assert served.reports == [told]
    report(served.path, bytes(32), identity, told)  # from a stranger
    report("/nowhere", SECRET, identity, told)
    assert len(served.reports) == 1
    exchange_all(served)


@pytest.mark.timed
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
    # The rank that comes too late gets the same error.
    with pytest.raises(StalledError, match="Missing ranks: 1"):
        served.join(1).exchange(b"")


def test_second_process_with_the_same_rank_is_refused(
    served: Served,
) -> None:
    child = {"pid": 7, "generation": 0}
    first = served.join(0)
    with pytest.raises(LaunchError, match="pid 100"):
        served.join(0, **child)
    first.abort("")
    assert exchange_all(served) == 2
    for child["generation"] in (0, 2):  # started or forked by rank 0
        with pytest.raises(LaunchError, match="is there already"):
            served.join(0, **child)
    assert exchange_all(served) == 3


# ---- Processes that the launcher starts anew ----


def test_newcomer_and_survivors_are_told_the_same_generation(
    served: Served,
) -> None:
    exchange_all(served)
    served.rank_exited(1, "exited with code 1")
    served.rank_started(1)
    assert served.identity(1).generation == 0
    assert exchange_all(served) == 2


def test_newcomer_is_not_told_of_failures_before_it_started(
    served: Served,
) -> None:
    served.rank_exited(1, "was killed by SIGKILL")
    for generation in (1, 2):
        with pytest.raises(PeerLostError, match="SIGKILL"):
            served.join(0).exchange(b"")
        assert served.generations[0] == generation
    served.rank_started(1)
    with served.join(1) as rendezvous:
        assert rendezvous.generation == 3


@pytest.mark.parametrize(
    "kind", [kind for kind in ReportKind if kind != ReportKind.STATUS]
)
def test_a_report_is_of_the_rank_that_has_proved_itself(
    served: Served, kind: ReportKind
) -> None:
    exchange_all(served)
    # Its text says nothing of its kind.
    told = Report(kind, 0, "Preempted: Leaves: Straggler: 1 \u00e9")
    report(served.path, SECRET, served.identity(2), told)
    # Others may be late.
    rank = 0 if kind == ReportKind.STRAGGLER else 2
    assert served.reports == [told._replace(rank=rank)]


def test_a_reporter_may_tell_how_it_is_doing_again_and_again(
    served: Served,
) -> None:
    exchange_all(served)
    told = Report(ReportKind.STATUS, 2, "{}")
    connection = reporter(served.path, SECRET, served.identity(2))
    for _ in range(3):
        connection.tell(told)
    connection.tell_last(Report(ReportKind.FAILS, 2, "odd"))
    assert served.reports[:3] == [told] * 3
    assert served.reports[3].text == "odd"


@pytest.mark.parametrize("body", [b"", b"\x01\0\0", b"\xff\0\0\0\0odd"])
def test_a_report_that_makes_no_sense_is_dropped(
    served: Served, body: bytes
) -> None:
    exchange_all(served)
    connection = reporter(served.path, SECRET, served.identity(2))
    connection._send(protocol.frame(FrameType.REPORT, body))
    with pytest.raises(PeerLostError):
        connection._receive_frame(time.monotonic() + 5.0)
    assert served.reports == []
    exchange_all(served)


@pytest.mark.parametrize("num_newcomers", [1, 2])
def test_process_whose_rank_was_given_to_another_is_refused(
    served: Served, num_newcomers: int
) -> None:
    exchange_all(served)
    late = served.identity(1)
    for _ in range(num_newcomers):  # the first of two ends before it joins
        served.rank_started(1)
    options = {"generation": late.generation, "pid": late.pid}
    with pytest.raises(LaunchError, match="another process after generation 1"):
        served.join(1, **options)
    served.generations[1] = 0
    with served.join(1, pid=7), pytest.raises(LaunchError, match="too late"):
        served.join(1, **options)
    # Its report is not taken for one of the new process.
    report(served.path, SECRET, late, Report(ReportKind.FAILS, 1, "odd"))
    assert served.reports == []


def test_message_for_an_earlier_generation_is_refused_as_late(
    served: Served,
) -> None:
    sock = served.proved(0)
    sock.sendall(protocol.frame(FrameType.GOODBYE))
    header = protocol.EXCHANGE_HEADER.pack(0, 1000, 0)
    sock.sendall(protocol.frame(FrameType.EXCHANGE, header))
    kind, length = protocol.frame_header(
        read(sock, protocol.FRAME_HEADER_BYTES)
    )
    assert kind == FrameType.ERROR
    assert b"Rank 0 has left generation 1" in read(sock, length)


def test_rank_ahead_of_the_server_is_refused(served: Served) -> None:
    with pytest.raises(LaunchError, match="pid 100, which was in generation 5"):
        served.join(0, generation=5)
    assert exchange_all(served) == 1


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
    with pytest.raises(StalledError, match="Has rank 0 called"):
        Rendezvous(
            "/nowhere",
            SECRET,
            identity,
            timeout_seconds=0.3,
            is_of_rank_0=True,
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
    monkeypatch.setattr(local_server, "_running", None)  # a new process
    yield path
    shutil.rmtree(path)


def _joined(
    rank: int, last_generation: int = 0, timeout_seconds: float = 10.0
) -> Rendezvous:
    topology = Topology(rank, 2, rank, 2, launcher="x", job_identity="job 1")
    config = Config(start_timeout_seconds=timeout_seconds)
    return _rendezvous.join(topology, config, last_generation, print)


def _join(*arguments: Any, **options: Any) -> tuple[int, list[bytes]]:
    rank = arguments[0]
    with _joined(*arguments, **options) as rendezvous:
        return rendezvous.generation, rendezvous.exchange(b"%d" % rank)


def test_rank_0_serves_without_hvdrun(
    runtime_directory: Path,
) -> None:
    for last_generation in range(3):
        assert (
            outcomes(
                lambda: _join(1, last_generation),  # noqa: B023
                lambda: _join(0, last_generation),  # noqa: B023
            )
            == [(last_generation + 1, [b"0", b"1"])] * 2
        )
    (directory,) = runtime_directory.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    deadline = time.monotonic() + 5
    while list(directory.iterdir()):
        assert time.monotonic() < deadline, "a file is left behind"
        time.sleep(0.01)


def _announce(pid: int, **changes: Any) -> str:
    """Announces a server of process `pid`; returns the path."""
    path = local_server.announcement_path("job 1")
    announcement.announce(path, changes.pop("address", "@nobody"))
    found = announcement.read(path)
    assert found is not None
    process = processes.find(pid)
    ticks = process.start_ticks if process else 0
    made = dataclasses.replace(found, pid=pid, start_ticks=ticks, **changes)
    Path(path).write_text(json.dumps(dataclasses.asdict(made)))
    return path


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_announcement_of_an_earlier_job_is_replaced(
    runtime_directory: Path, dead_pid: int
) -> None:
    _announce(dead_pid, at=0.0)
    with pytest.raises(StalledError, match="Has rank 0 called"):
        _join(1, timeout_seconds=0.3)
    results = outcomes(lambda: _join(1), lambda: _join(0))
    assert results == [(1, [b"0", b"1"])] * 2


def test_rank_that_comes_after_rank_0_has_died_is_told_at_once(
    runtime_directory: Path, dead_pid: int
) -> None:
    path = _announce(dead_pid)
    text = rf"Rank 0 \(pid {dead_pid}\) has ended"
    with pytest.raises(PeerLostError, match=text):
        _join(1)
    _announce(dead_pid, failure=("StalledError", "too late"))
    with pytest.raises(StalledError, match="too late"):
        _join(1)
    _announce(dead_pid, pid_namespace="pid:[7]")
    with pytest.raises(MismatchError, match="in one container"):
        _join(1)
    for other in ("{", "[]", "{}", "null"):
        Path(path).write_text(other)
        assert announcement.read(path) is None


def test_two_jobs_of_one_name_are_an_error(runtime_directory: Path) -> None:
    live = Listener(backlog=1)
    with subprocess.Popen(["sleep", "60"]) as other:
        _announce(other.pid, address=live.address)
        with pytest.raises(LaunchError, match=f"pid {other.pid}"):
            _join(0)
        other.kill()
    live.socket.close()
    live.close_address()


def test_rank_0_hears_of_an_generation_that_failed_before_it_came(
    runtime_directory: Path,
) -> None:
    slow, fast = _joined(0), _joined(1)
    outcomes(lambda: slow.exchange(b""), lambda: fast.exchange(b""))
    fast.close()
    again = _joined(1, 1)
    assert again.generation == 2
    again.abort("it changed its mind")
    slow.close()
    time.sleep(0.2)
    with pytest.raises(PeerLostError, match="changed its mind"):
        _join(0, 1)
    results = outcomes(lambda: _join(0, 2), lambda: _join(1, 2))
    assert results == [(3, [b"0", b"1"])] * 2


def test_failure_of_the_server_is_seen_and_announced(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(server: Server, timeout_seconds: float | None) -> None:
        raise KeyError("inside")

    seen: list[str] = []
    monkeypatch.setattr(Server, "step", fail)
    monkeypatch.setattr(
        threading, "excepthook", lambda args: seen.append(str(args.exc_value))
    )
    for rank in (0, 1):
        with pytest.raises(InternalError, match="KeyError: 'inside'"):
            _join(rank)
    jobs.wait_for(lambda: seen == ["'inside'"])


def test_directory_that_others_may_enter_is_refused(
    runtime_directory: Path,
) -> None:
    directory = runtime_directory / f"hvd-{os.getuid()}"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(LaunchError, match="mode 0700"):
        _join(0)
