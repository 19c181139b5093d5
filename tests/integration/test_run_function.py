"""`hvd.run` runs a function on the ranks of a new job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jobs
import pytest

import hvd_keras as hvd

cloudpickle = pytest.importorskip("cloudpickle")


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(jobs.clean_environ()):
        monkeypatch.delenv(name)


def test_results_come_in_rank_order(capfd: pytest.CaptureFixture[str]) -> None:
    def ten_ranks(factor: int, *, plus: int) -> int:
        import hvd_keras as hvd

        hvd.init()
        print("printed by", hvd.rank())
        return hvd.rank() * factor + plus

    assert hvd.run(ten_ranks, (10,), {"plus": 1}, np=3) == [1, 11, 21]
    assert "[2] printed by 2\n" in capfd.readouterr().out


def test_a_large_result_arrives_whole() -> None:
    def large() -> bytes:
        return os.urandom(1) * (20 << 20)

    (found,) = hvd.run(large, np=1)
    assert found == found[:1] * (20 << 20)


def test_an_exception_is_raised_with_rank_and_traceback() -> None:
    def fail_on_1() -> None:
        import hvd_keras as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ZeroDivisionError("nothing left to divide")
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(hvd.RankError, match="rank 1: ZeroDivis") as caught:
        hvd.run(fail_on_1, np=2, grace=0.2)
    assert time.monotonic() - began < 20
    assert caught.value.rank == 1
    assert caught.value.exit_status == 1
    assert "in fail_on_1" in caught.value.traceback
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_killed_rank_is_named() -> None:
    def die() -> None:
        if os.environ["HVD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(hvd.RankError, match="SIGKILL") as caught:
        hvd.run(die, np=2, grace=0.2)
    assert (caught.value.rank, caught.value.exit_status) == (1, 137)


def test_a_rank_that_does_not_return_is_named() -> None:
    with pytest.raises(hvd.RankError, match="rank 0 ended with status 0"):
        hvd.run(os._exit, (0,), np=1)


def test_bad_arguments_are_errors_here() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="`fn` must be"):
        hvd.run("train.py", np=2)
    with pytest.raises(hvd.LaunchError, match="`-np` must be"):
        hvd.run(print, np=0)


def test_what_hvdrun_says_is_told_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ranks may print what looks like hvdrun's words, or nothing but them."""
    missing = [f"no-such-host-{n}.invalid" for n in range(3)]
    with pytest.raises(hvd.LaunchError) as caught:
        hvd.run(print, hosts=",".join(missing))
    text = str(caught.value)
    assert text.startswith("hosts failed to start:\n  no-such-host-0")
    assert len(text.splitlines()) == 5
    assert "hvdrun --check -H no-such-host-0" in text
    assert f"hvdrun: {text}\n" in capfd.readouterr().err

    def end_and_say_so() -> None:
        import hvd_keras as hvd

        hvd.init()
        print("hvdrun: all is well", file=sys.stderr, flush=True)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(hvd.LaunchError) as caught:
        hvd.run(end_and_say_so, np=2)
    text = "hvdrun ended: no message (exit status -9)."
    assert str(caught.value) == text


def test_no_result_is_taken_without_the_secret() -> None:
    def give_with_another_secret() -> str:
        import os

        from hvd_keras import LaunchError, _rendezvous
        from hvd_keras.config import Config

        topology = _rendezvous.detect(os.environ)
        environ = {**os.environ, "HVD_SECRET": "ab" * 32}
        try:
            _rendezvous.give_result(
                topology, Config.from_environ(environ), b"{}\nevil"
            )
        except LaunchError as error:
            return str(error)
        return "taken"

    (answer,) = hvd.run(give_with_another_secret, np=1)
    assert "refused this process" in answer


_CALLER = """
import sys
import hvd_keras as hvd
def wait():
    import os, time
    open(os.path.join({folder!r}, f"pid.{{os.getpid()}}"), "w").close()
    time.sleep(60)
try:
    hvd.run(wait, np=2, grace=0.2)
except KeyboardInterrupt:
    print("interrupted", "tensorflow" in sys.modules, "keras" in sys.modules)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_ranks_end_with_the_caller(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder, temporary = tmp_path / "ranks", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    code = textwrap.dedent(_CALLER.format(folder=str(folder)))
    caller = subprocess.Popen(
        [sys.executable, "-c", code],
        env=jobs.clean_environ(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    jobs.wait_for(lambda: len(list(folder.iterdir())) == 2, 20)
    caller.send_signal(number)
    stdout, _ = caller.communicate(timeout=20)
    if number == signal.SIGINT:
        assert stdout.endswith("interrupted False False\n")
    pids = [int(path.suffix[1:]) for path in folder.iterdir()]
    jobs.wait_for(lambda: not any(map(jobs.is_alive, pids)))
    jobs.wait_for(lambda: not list(temporary.iterdir()))


@pytest.mark.thorough
def test_a_cell_of_a_notebook_can_run_ranks() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = """
    import hvd_keras as hvd
    def rank():
        import hvd_keras as hvd
        hvd.init()
        print("rank", hvd.rank())
        return hvd.rank()
    hvd.run(rank, np=2)
    """
    cell = nbformat.v4.new_code_cell(textwrap.dedent(code))
    book = nbformat.v4.new_notebook(cells=[cell])
    client = nbclient.NotebookClient(book, timeout=60)
    client.execute(env=jobs.clean_environ())
    text = "".join(out.get("text", "") for out in cell.outputs)
    assert "[1] rank 1\n" in text
    assert cell.outputs[-1]["data"]["text/plain"] == "[0, 1]"


def test_horovod_run_takes_its_own_arguments() -> None:
    def sizes() -> list[int]:
        import horovod.tensorflow as hvd

        hvd.init()
        return [hvd.size(), hvd.rank()]

    code = """
    import cloudpickle, sys
    import hvd_keras.compat.horovod
    import horovod
    function = cloudpickle.loads(sys.stdin.buffer.read())
    found = horovod.run(function, np=2, use_gloo=True, start_timeout=60)
    print(found)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=jobs.clean_environ(),
        input=cloudpickle.dumps(sizes),
        capture_output=True,
        timeout=90,
    )
    assert done.stdout.endswith(b"[[2, 0], [2, 1]]\n"), done


def test_an_elastic_job_starts_a_dead_rank_again() -> None:
    def die_once() -> int:
        import hvd_keras as hvd

        if os.environ["HVD_MEMBER"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.init()
        return hvd.rank()

    options = {"min_np": 2, "max_restarts": 1}
    assert hvd.run(die_once, np=2, **options) == [0, 1]


def test_an_elastic_job_returns_no_errors_that_it_has_mended() -> None:
    def fail_twice() -> int:
        import hvd_keras as hvd

        if int(os.environ["HVD_MEMBER"]) < 2:
            raise OSError("no such host yet")
        hvd.init()
        return hvd.rank()

    options = {"min_np": 1, "max_restarts": 2}
    assert hvd.run(fail_twice, np=1, **options) == [0]


def test_an_elastic_job_that_fails_names_who_ended_it() -> None:
    def fail() -> None:
        import hvd_keras as hvd

        if os.environ["HVD_MEMBER"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.init()
        raise ZeroDivisionError("nothing left to divide")

    with pytest.raises(hvd.RankError, match="ZeroDivis") as caught:
        hvd.run(fail, np=1, min_np=1, max_restarts=1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
