"""Joins a job and leaves it; tells the place of this process in it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from hvd_keras import _native, _rendezvous, process_set
from hvd_keras._common import log, verification
from hvd_keras._job import (
    autotune,
    exit_hooks,
    flight,
    interrupts,
    last_words,
    membership,
    metrics,
    startup,
    state,
    status,
    timeline,
    written_files,
)
from hvd_keras._native import gpu
from hvd_keras._records.evidence import IN_FIT
from hvd_keras._rendezvous import ReportKind, Topology
from hvd_keras._rendezvous.errors import JobEndedError
from hvd_keras.config import Config
from hvd_keras.exceptions import (
    InternalError,
    InvalidArgumentError,
    PeerLostError,
)
from hvd_keras.process_set import ProcessSet

_lock = threading.Lock()
_Sets = Sequence[ProcessSet | Sequence[int]]
ProcessSets = _Sets | Literal["dynamic"] | Callable[[int], _Sets] | None
_arguments: tuple[Sequence[int] | None, ProcessSets] = None, None
# An elastic job begins a generation again if a member dies meanwhile. What
# fails so often has another cause.
_MAX_FAILURES = 5
# Why the calls of other ranks fail when the program of this one is over.
_ENDED = (
    "its script ended without this call. Make it on all ranks, equally often, "
    "not under `if hvd.rank() == 0`"
)


def init(
    comm: Sequence[int] | None = None,
    process_sets: ProcessSets = None,
) -> None:
    """Joins the job that the launcher has started; a second call does nothing.

    Every rank calls this once before anything else. It reads the settings
    (`hvdrun --help-env`), takes rank and size from the launcher's environment
    variables and waits for the other ranks. Without a launcher the job has one
    rank. If a rank leaves the job without `shutdown()` while others need it,
    their calls fail.

    Args:
        comm: None, or a list of all ranks, which means the same.
        process_sets: Sets of ranks that run their own collectives: a list of
            `ProcessSet` or lists of ranks, equal on all ranks. At the first
            `init()` they get the ids 1, 2, ... in that order. "dynamic" makes
            none now and lets `add_process_set` add some later. For an elastic
            job: a function that returns such a list for a number of ranks.

    Raises:
        ConfigError: A setting is unknown or has a bad value.
        LaunchError: The launcher's description of the job is unusable.
        InvalidArgumentError: `process_sets` names a rank that does not exist,
            or a set twice.
        MismatchError: The ranks differ in version or settings.
        ProcessSetMismatchError: The ranks differ in `process_sets`. It is a
            `ValueError` too.
        NotImplementedError: `comm` is an MPI communicator, or it has only some
            of the ranks.
        PeerLostError: A rank died before all had joined.
        StalledError: A rank did not join within HVD_START_TIMEOUT.

    Example, without a launcher:

    >>> import hvd_keras as hvd
    >>> hvd.init()
    >>> hvd.rank(), hvd.size()
    (0, 1)
    """
    global _arguments
    with _lock:
        if state.job() is not None:
            return
        _arguments = comm, process_sets
        config = Config.from_environ(os.environ)
        topology = _rendezvous.detect(os.environ)
        log.configure(config.log_level, topology.rank, is_strict=config.strict)
        if membership.begin_waiting():
            topology = _start_alone(topology, config)
        else:
            topology = _join_until_all_are_in(topology, config)
        state.enter(topology, config)
        flight.begin(topology, config)
        autotune.begin(topology, config)
        metrics.begin(topology, config)
        status.begin()
        timeline.begin(topology, config)
        exit_hooks.install(_leave_failing, topology.rank)
        if topology.size > 1:
            written_files.watch()
            interrupts.watch(lambda: _leave_failing("KeyboardInterrupt"))
    if topology.rank == 0:
        log.info(startup.describe(topology, config))


def _start_alone(topology: Topology, config: Config) -> Topology:
    """Starts a process that joins later; until then its calls end at once."""
    topology = startup.start_alone(topology, config)
    process_set.attach(topology.rank, topology.size, is_dynamic=False)
    return topology


def _join_until_all_are_in(topology: Topology, config: Config) -> Topology:
    """Joins the job; in an elastic one goes on if others die meanwhile."""
    num_failures = 0
    while True:
        try:
            return _join(topology, config)
        except JobEndedError:
            raise
        except (PeerLostError, InternalError) as error:
            num_failures += isinstance(error, InternalError)
            if topology.member is None or num_failures == _MAX_FAILURES:
                raise
            log.info(f"joining again: {error}")


def _join(topology: Topology, config: Config) -> Topology:
    comm, process_sets = _arguments
    sets: list[ProcessSet] = []

    def check_arguments(place: Topology) -> str:
        _check_comm(comm, place.size)
        try:
            sets.extend(process_set.parse(process_sets, place.size))
        except InvalidArgumentError as error:
            if place.member is None or callable(process_sets):
                raise
            raise InvalidArgumentError(
                f"{error} In an elastic job, give `init` a function of the "
                "number of ranks."
            ) from None
        shown: Any = [one.ranks for one in sets]
        if not sets and not callable(process_sets):
            shown = process_sets
        return f"process_sets={shown or None}"

    topology = startup.start(topology, config, check_arguments)
    is_dynamic = config.dynamic_process_sets or process_sets == "dynamic"
    process_set.attach(topology.rank, topology.size, is_dynamic=is_dynamic)
    try:
        if startup.connects_gpus():
            _connect_gpus(must=config.gpu == "on")
        process_set.register_static(sets)
    except BaseException:
        _stop("`init()` failed")
        raise
    return topology


def shutdown() -> None:
    """Leaves the job properly. Collectives that still wait fail.

    `init()` may follow and joins again, if every rank calls both. Without a
    job this does nothing.
    """
    _leave(goes_on=False)


def _leave(*, goes_on: bool) -> None:
    with _lock:
        job = state.leave()
        if job is not None:
            last_words.note(job)
            if not goes_on:
                last_words.tell(job)
            interrupts.unwatch()
            autotune.end(goes_on=goes_on)
            metrics.end()
            status.end()
            timeline.stop()
            _stop("shutdown() was called", goes_on=goes_on)
            membership.hang_up()


def _rejoin() -> None:
    _leave(goes_on=True)
    init(*_arguments)


membership.set_rejoin(_rejoin)


def is_initialized() -> bool:
    """Whether this process has joined a job and not left it."""
    return state.job() is not None


def rank() -> int:
    """The index of this process in the job, in [0, `size()`)."""
    return state.topology("rank").rank


def size() -> int:
    """The number of processes in the job."""
    return state.topology("size").size


def size_of_job() -> int:
    """What `size()` says to a script: usually the number of processes.

    In the one process of `hvdrun --verify` it is the number of ranks that the
    process stands for. Ask this where a rate or a batch is scaled, and `size()`
    where processes communicate.
    """
    return size() * verification.num_merged()


def local_rank() -> int:
    """The index of this process among the job's processes on this host."""
    return state.topology("local_rank").local_rank


def local_size() -> int:
    """The number of the job's processes on this host."""
    return state.topology("local_size").local_size


def cross_rank() -> int:
    """The index of this host in the job."""
    return state.topology("cross_rank").cross_rank


def cross_size() -> int:
    """The number of hosts in the job."""
    return state.topology("cross_size").cross_size


def stats() -> dict[str, int]:
    """Counts of what this rank has done since `init()`.

    Returns:
        Counts by name. Each is the sum over all process sets.

        - `num_requests`: tensors or groups submitted.
        - `num_collectives`: collectives run, after fusion.
        - `num_steps`: steps of distributed optimizers and tapes.
        - `num_bytes`: bytes of their inputs.
        - `num_cache_hits`, `num_cache_misses`: requests that the ranks agreed
          on by one bit, or in full.
        - `pending_ns`: nanoseconds in which at least one request of this rank
          waited for other ranks or ran.
        - `running_ns`: nanoseconds in which at least one collective ran.
    """
    state.topology("stats")
    counts: dict[str, int] = _native.core().stats()
    return counts


def autotune_changes() -> list[dict[str, Any]]:
    """The settings that `hvdrun --autotune` has changed, on all ranks alike.

    Returns:
        A dict for each change, in order. The last one is in force.

        - `collective`: the number, in an order that all ranks share, of what
          the ranks did when they changed.
        - `fusion_threshold_bytes`, `cycle_time_ms`: see `hvdrun --help-env`.
    """
    state.topology("autotune_changes")
    return autotune.changes()


def dump_flight_record(path: str | os.PathLike[str]) -> None:
    """Writes what became of this rank's last 4,096 collectives.

    The file holds lines of JSON: the first is about the process, the others are
    about a collective each, in the order of their calls. Times are nanoseconds
    of this host's monotonic clock.

    Args:
        path: The file; it is replaced as a whole.

    Raises:
        InternalError: The file cannot be written.
        NotInitializedError: `init()` has not been called.

    Example:

    >>> import json, hvd_keras as hvd
    >>> hvd.init()
    >>> hvd.barrier()
    >>> hvd.dump_flight_record("/tmp/flight.jsonl")
    >>> with open("/tmp/flight.jsonl") as file:
    ...     header, *records = map(json.loads, file)
    >>> header["rank"], records[-1]["kind"], records[-1]["state"]
    (0, 'barrier', 'done')
    """
    state.topology("dump_flight_record")
    flight.write("dump_flight_record() was called", os.fspath(path))


def start_timeline(
    file_path: str | os.PathLike[str], mark_cycles: bool = False
) -> None:
    """Begins to record what this rank does.

    Each rank that calls this writes a file of its own. `hvd-trace merge`
    makes one trace of them. `HVD_TIMELINE` does the same from `init()` on.
    A `fit` shows its steps if it begins while the timeline is recorded.

    Args:
        file_path: A folder, which is made if needed; the same for all ranks.
            The rank's file in it is replaced.
        mark_cycles: Whether to mark when this rank hears what to run next.

    Raises:
        FileInUseError: Another job records into that file.
        InvalidArgumentError: A timeline is being recorded already, or the
            file cannot be written. It is a `ValueError` too.
        NotInitializedError: `init()` has not been called.
        OSError: The folder cannot be made.

    Example:

    >>> import hvd_keras as hvd
    >>> hvd.init()
    >>> hvd.start_timeline("/tmp/timeline")
    >>> hvd.barrier()
    >>> hvd.stop_timeline()
    """
    topology = state.topology("start_timeline")
    timeline.start(
        topology, state.config(), os.fspath(file_path), bool(mark_cycles)
    )


def stop_timeline() -> None:
    """Completes the file that `start_timeline` or HVD_TIMELINE has begun.

    Without a timeline this does nothing. `shutdown()` and the end of the
    process do the same. If the disk could not take all of it, a warning says
    so.

    Raises:
        NotInitializedError: `init()` has not been called.
    """
    state.topology("stop_timeline")
    timeline.stop()


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks.

    Ranks that share no memory, as those of two containers, count as ranks of
    two hosts.
    """
    state.topology("is_homogeneous")
    network = startup.network()
    return network is None or network.layout.is_homogeneous


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads: False, there is none."""
    return False


def mpi_enabled() -> bool:
    """Whether this job uses MPI: False, this build has none."""
    return False


def gloo_enabled() -> bool:
    """Whether this job uses Gloo: False, this build has none."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Whether this build has MPI: False. `verbose` changes nothing."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Whether this build has Gloo: False. `verbose` changes nothing."""
    return False


def nccl_built(verbose: bool = False) -> int:
    """The version of the NCCL that is found: 22707 means 2.27.7, 0 none.

    NCCL is not part of the build. It is opened when tensors on GPUs need it.
    `verbose` changes nothing.
    """
    startup.set_gpu_libraries()
    return gpu.nccl_version()


def ddl_built(verbose: bool = False) -> bool:
    """Whether this build has IBM DDL: False. `verbose` changes nothing."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Whether this build has oneCCL: False. `verbose` changes nothing."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Whether a CUDA runtime is found. See `nccl_built`."""
    startup.set_gpu_libraries()
    return gpu.has_cuda()


def rocm_built(verbose: bool = False) -> bool:
    """Whether this build has ROCm: False. `verbose` changes nothing."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether `num_rank` is a power of two. Adasum here takes any number."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """The same as `num_rank_is_power_2`: Horovod has both names."""
    return num_rank_is_power_2(num_rank)


def _connect_gpus(*, must: bool) -> None:
    try:
        gpu.connect()
    except (InternalError, InvalidArgumentError) as error:
        if must:
            raise
        # It fails if the core cannot go on.
        _native.core().barrier("hvd_keras.init.without_gpus")
        log.warning(f"`init()` could not connect the GPUs. {error}")
        return
    process_set.note_gpus_connected()


def _check_comm(comm: Any, size: int) -> None:
    if comm is None:
        return
    if hasattr(comm, "Get_rank"):
        raise NotImplementedError(
            "`comm` must be None or a list of all ranks: this build has no "
            "MPI. Received: an MPI communicator."
        )
    try:
        ranks = ProcessSet(comm).ranks or []
    except InvalidArgumentError:
        ranks = [size]
    if ranks[-1] >= size:
        raise InvalidArgumentError(
            f"`comm` must be None or a list of all ranks in [0, {size}). "
            f"Received: comm={comm!r}."
        )
    if len(ranks) < size:
        raise NotImplementedError(
            f"`comm` must be None or a list of all {size} ranks: a job cannot "
            f"have only some of them. Received: comm={comm!r}. Call "
            f"`init(process_sets=[{ranks}])` on all ranks, and pass that "
            "process set to the collectives."
        )


def _stop(reason: str, *, goes_on: bool = False) -> None:
    startup.stop(reason, goes_on=goes_on)
    process_set.detach()


def _leave_failing(reason: str, error: BaseException | None = None) -> None:
    """Tells the launcher and the peers why this rank fails; leaves the job."""
    job = state.leave()
    if job is None:
        return
    flight.write_after_failure(reason, error)
    with contextlib.suppress(Exception):  # Python must print the first one
        _native.core().note_failure(reason)
        _rendezvous.tell(
            job.topology,
            job.config,
            state.generation(),
            ReportKind.FAILS,
            reason,
        )
        _stop(reason)
    timeline.stop(reads_clock=False)


@atexit.register
def _leave_at_exit() -> None:
    interrupts.finish()
    job = state.leave()
    if job is not None:
        timeline.stop()
        autotune.end(goes_on=False)
        last_words.note(job)
        last_words.tell(job)
        # Tell the launcher first: a peer may fail as soon as this rank stops.
        call = exit_hooks.exit_call()
        _rendezvous.tell(
            job.topology, job.config, state.generation(), ReportKind.ENDS, call
        )
        reason = f"it called {call}; {_ENDED}" if call else _ENDED
        # What ends `fit` is no missing call: the verdict has its own cure.
        _stop(f"it called {call}" if call.endswith(IN_FIT) else reason)
