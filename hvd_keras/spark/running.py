"""`hvd_keras.spark.run`: a function on ranks that are tasks of Spark."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras._common import horovod_site
from hvd_keras._job.packing import (
    pack_call,
    pack_error,
    pack_value,
    run_packed,
    unpack,
)
from hvd_keras._records.blame import End, Evidence, blame
from hvd_keras.exceptions import InvalidArgumentError, RankError
from hvd_keras.run.hosts import workers
from hvd_keras.spark import _barrier
from hvd_keras.spark.devices import visible_devices

_log = logging.getLogger("hvd_keras")


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    retries: int = 0,
    env: Mapping[str, str] | None = None,
    session: Any = None,
) -> list[Any]:
    """Runs a function on ranks that are tasks of one Spark job.

    All tasks run at the same time (a barrier stage); each calls
    `fn(*args, **kwargs)`, which calls `hvd.init()` and trains. Ranks of a host
    follow each other. Each sees only the GPUs that Spark has given to its task.
    It works in classic Spark and in Spark Connect.

    If a task is lost, Spark ends the stage. With `retries`, a new job begins
    then: `fn` should go on from its last checkpoint, for example by
    `keras.callbacks.BackupAndRestore` in a folder that all hosts share.

    Args:
        fn: The function; it travels by cloudpickle, through Spark. Import
            frameworks in it.
        args: Its arguments.
        kwargs: Its arguments by name.
        num_proc: Number of ranks. Defaults to all slots of the cluster; Spark
            Connect cannot tell them.
        retries: How often to start again after a failure.
        env: Environment variables for the ranks.
        session: The Spark session. Defaults to the active one.

    Returns:
        What `fn` returned on each rank, in rank order.

    Raises:
        RankError: `fn` raised on a rank.
        InvalidArgumentError: `num_proc` or `retries` is out of range.
        LaunchError: There is no session, or Spark Connect needs `num_proc`.
        Exception: What Spark raises if it lost a task too often.
    """
    session = session or _barrier.active_session()
    if num_proc is None:
        num_proc = _barrier.num_slots(session)
    if num_proc < 1 or retries < 0:
        raise InvalidArgumentError(
            "`num_proc` must be 1 or more and `retries` 0 or more. Received: "
            f"num_proc={num_proc}, retries={retries}."
        )
    task = _task(pack_call(fn, args, dict(kwargs or {})), dict(env or {}))
    for attempt in range(retries + 1):
        try:
            packed = _barrier.run_tasks(session, num_proc, task)
        except Exception as error:
            if attempt == retries:
                raise
            _log.warning(
                "attempt %d of %d failed, the next begins: %s",
                attempt + 1,
                retries + 1,
                str(error).partition("\n")[0],
            )
        else:
            break
    return _values(packed)


def _task(call: bytes, env: dict[str, str]) -> _barrier.Task:
    is_horovod = horovod_site.is_used()

    def task(context: Any) -> bytes:
        before = dict(os.environ)
        os.environ.update(env)
        os.environ.update(visible_devices(_barrier.gpus_of_task(context)))
        try:
            place = _place(context)
            workers.become_rank(place, is_horovod=is_horovod)
            return _call(call, int(place["HVD_RANK"]))
        finally:  # Spark uses the process again
            os.environ.clear()
            os.environ.update(before)

    return task


def _call(call: bytes, rank: int) -> bytes:
    from hvd_keras import basics

    try:
        return pack_value(run_packed(call), rank)
    except Exception as error:
        # A failed task would hide the exception behind those of others.
        return pack_error(error, rank)
    finally:
        basics.shutdown()


def _place(context: Any) -> dict[str, str]:
    """Agrees with the other tasks on ranks; returns the variables of this."""
    hosts = _barrier.hosts_of_tasks(context)
    order = workers.by_host(hosts)
    rank = order.index(context.partitionId())
    offer = workers.meeting_point(len(set(hosts))) if rank == 0 else ""
    at = _barrier.share(context, offer)[order[0]]
    made: list[dict[str, str]] = []
    if rank == 0:
        by_rank = [hosts[number] for number in order]
        made = workers.variables(by_rank, at, "Spark")
    shared = _barrier.share(context, json.dumps(made))[order[0]]
    found: dict[str, str] = json.loads(shared)[rank]
    return found


def _values(packed: Sequence[bytes]) -> list[Any]:
    values: dict[int, Any] = {}
    errors = {}
    for one in packed:
        header, value = unpack(one)
        values[header["rank"]] = value
        if "error" in header:
            errors[int(header["rank"])] = header, value
    ends = [End(rank, str(errors[rank][0]["error"])) for rank in sorted(errors)]
    first = blame(Evidence(ends)).rank
    if first is not None:
        header, cause = errors[first]
        what = str(header["error"]).partition("\n")[0]
        trace = str(header["traceback"])
        raise RankError(
            f"`fn` failed on rank {header['rank']}: {what}\n\n{trace.rstrip()}",
            int(header["rank"]),
            None,
            trace,
        ) from cause
    return [values[rank] for rank in sorted(values)]
