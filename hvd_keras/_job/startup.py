"""Starts the core together with the other ranks, and stops it."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras import _native, _rendezvous
from hvd_keras._common import log
from hvd_keras._common.version import installed, package_version, versions
from hvd_keras._job import autotune, membership, state
from hvd_keras._job.hosts import layout as hosts
from hvd_keras._job.hosts.network import Network
from hvd_keras._native import gpu
from hvd_keras._rendezvous import Rendezvous, Topology, interfaces
from hvd_keras._rendezvous.errors import error_class
from hvd_keras._rendezvous.protocol import process_name
from hvd_keras.config import Config
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    MismatchError,
    ProcessSetMismatchError,
)

_PROTOCOL_VERSION = 4  # of the values that the ranks exchange here

Segment = tuple[int, int, bytes]  # pid and descriptor of its owner, token

_network: Network | None = None  # of the running job, if it has several hosts
_connects_gpus = False  # see `connects_gpus`
_has_gpu = False  # this process was shown its GPU


def start(
    topology: Topology,
    config: Config,
    check_arguments: Callable[[Topology], str],
) -> Topology:
    """Starts the core on all ranks, or on none.

    It sets `state.generation()`, even if it fails later.

    Args:
        topology: The place of this process.
        config: The settings.
        check_arguments: Checks the arguments of `init` and returns them as a
            text that must be equal on all ranks. If it raises, the other ranks
            are told.

    Returns:
        The place of this process; in an elastic job the server has given it.

    Raises:
        HvdError: Something went wrong on this rank or on another one. All ranks
            get the reason.
    """
    global _connects_gpus
    native = _native.core()
    _connects_gpus = config.gpu in ("early", "on")
    if topology.size == 1 and topology.member is None:
        _prepare_gpus(topology, config)
        state.set_generation(state.generation() + 1)
        check_arguments(topology)
        _init_core(native, topology, config, [os.getpid()], None)
        return topology
    if topology.member is None:
        _prepare_gpus(topology, config)
    rendezvous = _rendezvous.join(
        topology, config, state.generation(), log.notice
    )
    state.set_generation(rendezvous.generation)
    if rendezvous.seat is not None:
        seat = rendezvous.seat._asdict()
        topology = dataclasses.replace(topology, **seat)
        log.configure(config.log_level, topology.rank, is_strict=config.strict)
        membership.follow(rendezvous)
    with rendezvous:
        if topology.member is not None:
            _prepare_gpus(topology, config)
        call = check_arguments(topology)
        if topology.size == 1:
            _init_core(native, topology, config, [os.getpid()], None)
            return topology
        segment_fd = None
        segment: Segment | None = None
        try:
            if topology.rank == 0:
                segment_fd, token = native.create_segment(topology.size)
                segment = (os.getpid(), segment_fd, token)
            own_value = _own_value(
                config, call, segment, rendezvous.own_address
            )
            values = rendezvous.exchange(own_value)
            peers = [json.loads(value) for value in values]
            _attach(native, topology, config, rendezvous, peers)
        finally:
            if segment_fd is not None:
                os.close(segment_fd)
    return topology


def start_alone(topology: Topology, config: Config) -> Topology:
    """Starts the core of a process that joins its job later.

    Returns:
        The place that the process will likely have, as hvdrun has told.
    """
    rank = 1 if config.rank is None else config.rank
    local_rank = config.local_rank or 0
    likely = dataclasses.replace(
        topology,
        rank=rank,
        size=config.size or rank + 1,
        local_rank=local_rank,
        local_size=local_rank + 1,
    )
    _prepare_gpus(likely, config)
    place = dataclasses.replace(topology, rank=0, size=1)
    _init_core(_native.core(), place, config, [os.getpid()], None)
    return likely


def connects_gpus() -> bool:
    """Whether `init()` is to connect the GPUs: the same on all ranks."""
    return _connects_gpus


def set_gpu_libraries() -> None:
    """Tells the core where to look for CUDA and NCCL if there is no job.

    It uses the settings that `init()` would read now. In a job, `init()` has
    done it already.
    """
    if state.job() is None:
        gpu.set_libraries(Config.from_environ(os.environ))


def stop(reason: str, *, goes_on: bool = False) -> None:
    """Stops the core, which tells the peers `reason`.

    Args:
        reason: Why.
        goes_on: Whether this process joins the job again at once.
    """
    global _network
    _native.core().shutdown(reason)
    if _network is not None:
        _network.stop(goes_on=goes_on)
        _network = None


def network() -> Network | None:
    """Returns the connections to other hosts; None if there are none."""
    return _network


def describe(topology: Topology, config: Config) -> str:
    """Returns a line about the job, for the log."""
    stall = "off"
    if not config.stall_check_disable:
        stall = (
            f"warns at {config.stall_warning_seconds:g} s, fails at "
            f"{config.stall_timeout_seconds:g} s"
        )
    transport = "shm" if topology.size > 1 else "none needed"
    where = "one host"
    if _network is not None:
        where = f"{_network.layout.num_hosts} hosts"
        transport = f"shm and {_network.version}"
    return (
        f"size {topology.size} on {where}, ranks from {topology.launcher}, "
        f"transport {transport}, stall check {stall}, version "
        f"{package_version()}"
    )


def _attach(
    native: Any,
    topology: Topology,
    config: Config,
    rendezvous: Rendezvous,
    peers: list[dict[str, Any]],
) -> None:
    global _network, _connects_gpus
    _check_equality(peers)
    _connects_gpus = all(peer["connects_gpus"] for peer in peers)
    layout = hosts.layout([peer["host"] for peer in peers], topology.rank)
    pids = [int(peer["pid"]) for peer in peers]
    pid, fd, token = peers[0]["segment"]
    segment = (pid, fd, base64.b16decode(token))
    where: Any = None
    if layout.num_hosts > 1:
        leaders = [peers[leader] for leader in layout.leaders]
        _network = Network(layout, leaders, rendezvous, config)
        try:
            started = _network.start(rendezvous)
        except BaseException:
            stop("`init()` failed")
            raise
        pids, segment = started.pids, started.segment
        where = started.hosts
    failure: Exception | None = None
    try:
        processes = [
            process_name(
                peer["hostname"] if layout.num_hosts > 1 else "", peer["pid"]
            )
            for peer in peers
        ]
        _init_core(native, topology, config, pids, segment, where, processes)
    except Exception as error:
        failure = error
    try:
        _agree_on_success(rendezvous, failure)
    except BaseException:
        stop("`init()` failed")
        raise
    if _network is not None:
        _network.has_attached()


def _own_value(
    config: Config, call: str, segment: Segment | None, address: str
) -> bytes:
    value = {
        "protocol": _PROTOCOL_VERSION,
        "version": package_version(),
        "libraries": versions(),
        "host": _host_identity(),
        "boot": _boot(),
        "hostname": config.hostname or interfaces.host_name(),
        "address": address,
        "pid": os.getpid(),
        "settings": config.shared_values(),
        "call": call,
        "segment": None,
        "connects_gpus": gpu.wants_early(
            config, os.environ, (installed("TensorFlow") or (None,))[0]
        ),
    }
    if segment is not None:
        pid, fd, token = segment
        value["segment"] = (pid, fd, base64.b16encode(token).decode())
    return json.dumps(value).encode()


def _host_identity() -> str:
    # Shared memory and pidfds work only within one kernel, one user and one
    # container: other ranks are on other hosts.
    pids, users = (os.readlink(f"/proc/self/ns/{n}") for n in ("pid", "user"))
    return f"boot {_boot()}, user {os.getuid()}, {pids}, {users}"


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _check_equality(peers: list[dict[str, Any]]) -> None:
    names = {
        "protocol": "versions of the start protocol",
        "version": "versions of hvd_keras",
    }
    for key, what in names.items():
        _check_equal(what, [peer[key] for peer in peers])
    for library in peers[0]["libraries"]:
        for how in ("installed", "loaded"):
            _check_equal_where_known(
                f"versions of {library}",
                [peer["libraries"][library].get(how) for peer in peers],
            )
    for name in peers[0]["settings"]:
        values = [peer["settings"].get(name) for peer in peers]
        _check_equal(f"values of {name}", values)
    calls = [peer["call"] for peer in peers]
    _check_equal("process sets", calls, ProcessSetMismatchError)


def _check_equal(
    what: str, values: list[Any], error: type[HvdError] = MismatchError
) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise error(
                f"All ranks must have equal {what}. Received: {values[0]} on "
                f"rank 0, {value} on rank {rank}."
            )


def _check_equal_where_known(what: str, values: list[str | None]) -> None:
    known = [(value, rank) for rank, value in enumerate(values) if value]
    for value, rank in known:
        first, first_rank = known[0]
        if value != first:
            raise MismatchError(
                f"All ranks must have equal {what}. Received: {first} on rank "
                f"{first_rank}, {value} on rank {rank}. Start all ranks in one "
                "environment."
            )


def _init_core(
    native: Any,
    topology: Topology,
    config: Config,
    pids: list[int],
    segment: Segment | None,
    where: Any = None,
    processes: Sequence[str] = (),
) -> None:
    native.set_local_topology(topology.local_rank, topology.local_size)
    native.init(
        rank=topology.rank,
        size=topology.size,
        epoch=state.generation(),
        pids=pids,
        segment=segment,
        hosts=where,
        options=_engine_options(native, config, processes),
    )


def _engine_options(
    native: Any, config: Config, processes: Sequence[str]
) -> Any:
    checks_stalls = not config.stall_check_disable
    # The core itself prints these warnings, and how it packs tensors on GPUs.
    warns = checks_stalls and config.log_level not in ("error", "fatal")
    options = native.EngineOptions()
    options.fusion_threshold_bytes = config.fusion_threshold_bytes
    options.cache_capacity = config.cache_capacity
    options.cycle_time_ms = config.cycle_time_ms
    options.stall_warning_seconds = warns * config.stall_warning_seconds
    options.stall_timeout_seconds = checks_stalls * config.stall_timeout_seconds
    options.processes = processes
    options.gpu.fusion_buffer_bytes = config.gpu_fusion_buffer_bytes
    options.gpu.direct_bytes = config.gpu_direct_bytes
    options.gpu.packing = config.gpu_packing
    options.gpu.tells_packing = config.log_level in ("trace", "debug", "info")
    options.gpu.done_in_stream_order = config.gpu_async_completion is True
    options.gpu.local_rank = gpu.local_index()
    options.gpu.may_share = config.gpu_share
    tuner = autotune.options(config, os.environ)
    if tuner is not None:
        options.tune(tuner)
    return options


def _prepare_gpus(topology: Topology, config: Config) -> None:
    global _has_gpu
    # A single process may want all GPUs. A member of an elastic job keeps its
    # first one, for its framework does, while its local rank may change.
    is_single = topology.size == 1 and topology.member is None
    if not is_single and not (_has_gpu and topology.member is not None):
        gpu.pin(config, topology.local_rank, topology.local_size)
        _has_gpu = True
    _lead_nccl(config)
    gpu.set_libraries(config)


def _lead_nccl(config: Config) -> None:
    # NCCL would else choose an interface by itself.
    names = ("NCCL_SOCKET_IFNAME", "HVD_NCCL_SOCKET_IFNAME")
    if config.interface is not None and not any(map(os.environ.get, names)):
        name = interfaces.name_of(config.interface)
        os.environ[names[0]] = f"={name}"  # as it is, not as a prefix


def _agree_on_success(
    rendezvous: Rendezvous, failure: Exception | None
) -> None:
    mine = None
    if failure is not None:
        mine = [type(failure).__name__, str(failure)]
    outcomes = rendezvous.exchange(json.dumps(mine).encode())
    if failure is not None:
        if isinstance(failure, HvdError):
            raise failure
        raise InternalError(f"The core did not start: {failure}") from failure
    for rank, outcome in enumerate(outcomes):
        other = json.loads(outcome)
        if other is not None:
            name, message = other
            raise error_class(name)(f"Rank {rank} did not start: {message}")
