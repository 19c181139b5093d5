"""`hvd.run`: runs a function on the ranks of a new job, from Python.

A process of its own runs hvdrun for it (`function_job`), so this one may have
threads, and be a notebook.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import operator
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hvd_keras._common import horovod_site
from hvd_keras._job.packing import pack_call, unpack
from hvd_keras.exceptions import InvalidArgumentError, LaunchError, RankError
from hvd_keras.run.hosts.provider import Provider
from hvd_keras.run.job.outcome import Outcome
from hvd_keras.run.job.results import outcome_in, stored_in
from hvd_keras.run.spec import (
    GRACE_SECONDS,
    SPEC,
    JobSpec,
    Output,
    Reach,
    elastic,
    settings,
)

_PACKAGE_PARENT = str(Path(__file__).parents[2])
_READ_BYTES = 64 << 10
_USAGE_STATUS = 2  # of an hvdrun that did not start the ranks


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    max_restarts: int | None = None,
    elastic_timeout: float | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    grace: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    interface: str | None = None,
    output_dir: str | None = None,
    show_ranks: Sequence[int] | None = None,
    verbose: bool = False,
    executable: str | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Runs a function on all ranks of a new job and returns their results.

    hvdrun starts new processes of this user; each calls `fn(*args, **kwargs)`,
    which calls `hvd.init()` and trains. What they print appears here, with the
    rank before each line. It works in a notebook; Ctrl-C (there: interrupt)
    ends all ranks. This process neither joins the job nor needs a framework.

    Args:
        fn: The function. It travels by cloudpickle: functions of a notebook or
            script travel whole, those of modules by name.
        args: Its arguments.
        kwargs: Its arguments by name.
        np: Number of ranks. Defaults to the slots of `hosts`.
        hosts: Where to start them, as "host:slots,...". Defaults to this host.
        hostfile: The same as a file.
        min_np: Makes the job elastic: it goes on while so many are left.
        max_np: Most ranks of an elastic job.
        max_restarts: How often an elastic job starts failed ranks again.
        elastic_timeout: Seconds that an elastic job waits for `min_np` ranks.
        host_discovery_script: A program that prints the hosts of an elastic
            job.
        start_timeout: Seconds within which all ranks must call `init()`.
        grace: Seconds for the ranks to end by themselves after a failure.
        ssh_port: The port of ssh.
        ssh_identity_file: The key file for ssh.
        interface: Interface or address where to listen to other hosts.
        output_dir: Folder for the output of each rank.
        show_ranks: Ranks whose output to show. Defaults to all.
        verbose: Whether to show each start and end.
        executable: Python of the ranks. Defaults to this one.
        env: Environment variables to add for the ranks on this host; others
            get those that hvdrun sends.

    Returns:
        What `fn` returned on each rank, in rank order.

    Raises:
        RankError: A rank failed. It has the rank, the traceback there, and
            the exception as its cause.
        LaunchError: The job could not be started, or cloudpickle is missing.
        InvalidArgumentError: `fn` cannot be called.

    Example:

    >>> hvd.run(lambda: (hvd.init(), hvd.rank())[1], np=2)  # doctest: +SKIP
    [0, 1]
    """
    spec = JobSpec(
        (),
        _whole(np),
        hosts,
        hostfile,
        reach=Reach(_whole(ssh_port), ssh_identity_file),
        elastic=elastic(
            _whole(min_np),
            max_ranks=_whole(max_np),
            max_restarts=_whole(max_restarts),
            timeout=elastic_timeout,
            host_discovery_script=host_discovery_script,
        ),
        output=Output(
            output_dir,
            shown_ranks=[*map(operator.index, show_ranks or ())],
            is_verbose=verbose,
        ),
        grace=GRACE_SECONDS if grace is None else grace,
        settings=settings(
            HVD_START_TIMEOUT=start_timeout, HVD_INTERFACE=interface
        ),
    )
    return run_spec(spec, fn, args, kwargs, executable=executable, env=env)


def _whole(value: int | None) -> int | None:
    return None if value is None else operator.index(value)


def run_spec(
    spec: JobSpec,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    executable: str | None = None,
    env: Mapping[str, str] | None = None,
    provider: Provider | None = None,
) -> list[Any]:
    """Does what `run` does, on the ranks of any job.

    Args:
        spec: The job, without its command.
        fn: See `run`.
        args: See `run`.
        kwargs: See `run`.
        executable: See `run`.
        env: See `run`.
        provider: What names the hosts and starts the agents, if `spec` has a
            provision.
    """
    if not callable(fn):
        raise InvalidArgumentError(
            f"`fn` must be a function. Received: {fn!r}."
        )
    call = pack_call(fn, args, dict(kwargs or {}))
    python = executable or sys.executable
    command = (python, "-m", "hvd_keras._job.function_rank")
    spec = dataclasses.replace(
        spec,
        command=command,
        is_horovod=spec.is_horovod or horovod_site.is_used(),
    )
    given = []
    if spec.provision is not None and provider is not None:
        given.append(provider.fileno())
        provision = dataclasses.replace(spec.provision, descriptor=given[0])
        spec = dataclasses.replace(spec, provision=provision)
    with (
        tempfile.TemporaryDirectory(prefix="hvd-run-") as folder,
        tempfile.TemporaryFile() as stdin,
    ):
        stdin.write(call)
        stdin.flush()
        (Path(folder) / SPEC).write_text(spec.to_json())
        job = subprocess.Popen(
            [sys.executable, "-m", "hvd_keras.run.function_job", folder,
             str(os.getpid())],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_with_package({**os.environ, **(env or {})}),
            pass_fds=given,
            start_new_session=True,  # Ctrl-C is for this process alone
        )  # fmt: skip
        if provider is not None:
            provider.started()
        _follow(job)
        # Nobody knows how many members of an elastic job must return.
        num_ranks = spec.num_ranks if spec.elastic is None else None
        return _results(folder, job.returncode, num_ranks or 0)


def _with_package(environ: dict[str, str]) -> dict[str, str]:
    if _PACKAGE_PARENT not in sysconfig.get_paths().values():
        others = environ.get("PYTHONPATH")
        path = [_PACKAGE_PARENT, *([others] if others else [])]
        environ["PYTHONPATH"] = os.pathsep.join(path)
    return environ


def _follow(job: subprocess.Popen[bytes]) -> None:
    """Shows what the job prints until it ends.

    Raises:
        KeyboardInterrupt: The user interrupted it, and it has ended.
    """
    assert job.stdout is not None
    assert job.stderr is not None
    was_interrupted = False
    with selectors.DefaultSelector() as selector, job:
        for file, shows in (
            (job.stdout, _Shown(sys.stdout)),
            (job.stderr, _Shown(sys.stderr)),
        ):
            selector.register(file, selectors.EVENT_READ, shows)
        while selector.get_map():
            try:
                _step(selector)
            except KeyboardInterrupt:
                was_interrupted = True
                job.send_signal(signal.SIGINT)
            except BaseException:
                job.send_signal(signal.SIGTERM)
                raise
        with contextlib.suppress(KeyboardInterrupt):
            job.wait()
    if was_interrupted:
        raise KeyboardInterrupt


def _step(selector: selectors.BaseSelector) -> None:
    for key, _ in selector.select():
        data = os.read(key.fd, _READ_BYTES)
        key.data.write(data)
        if not data:
            selector.unregister(key.fileobj)


class _Shown:
    """Writes bytes of the job to a stream of text, which may be a cell's."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def write(self, data: bytes) -> None:
        text = self._decode(data, final=not data)
        if self._stream is not None and text:
            self._stream.write(text)
            self._stream.flush()


def _results(folder: str, status: int, num_ranks: int) -> list[Any]:
    files = stored_in(folder)
    outcome = outcome_in(folder) or Outcome(status, "no message")
    if outcome.rank is not None and outcome.exit_status != 0:
        header: dict[str, Any] = {}
        error = None
        if outcome.rank in files:
            header, error = unpack(files[outcome.rank].read_bytes())
        raise _rank_error(outcome, header) from error
    if status != 0:
        raise LaunchError(
            outcome.text
            if status == _USAGE_STATUS
            else f"hvdrun ended: {outcome.text} (exit status {status})."
        )
    found = [unpack(path.read_bytes()) for path in files.values()]
    # Members of an elastic job that failed have others in their places.
    values = {h["rank"]: value for h, value in found if "error" not in h}
    missing = set(range(num_ranks)) - values.keys()
    if missing:
        raise RankError(
            f"`fn` must return on all ranks. Received: rank {min(missing)} "
            "ended with status 0 before.",
            min(missing),
            0,
        )
    return [values[rank] for rank in sorted(values)]


def _rank_error(outcome: Outcome, header: Mapping[str, Any]) -> RankError:
    rank = int(header.get("rank", outcome.rank))
    text = outcome.text
    trace = str(header.get("traceback", ""))
    if "error" in header:
        error = str(header["error"]).partition("\n")[0]
        text = f"`fn` failed on rank {rank}: {error}\n\n{trace.rstrip()}"
    return RankError(text, rank, outcome.rank_status, trace)
