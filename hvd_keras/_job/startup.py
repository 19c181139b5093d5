"""Starts the core together with the other ranks, and stops it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._common.version import package_version, versions
from hvd_keras._job import bootstrap, state
from hvd_keras._job.bootstrap import Rendezvous, Topology, interfaces
from hvd_keras._job.bootstrap.client import error_class
from hvd_keras._job.hosts import plan as hosts
from hvd_keras._job.hosts.network import Network
from hvd_keras._native import gpu
from hvd_keras.config import Config
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    MismatchError,
    ProcessSetMismatchError,
)

_PROTOCOL_VERSION = 3  # of the values that the ranks exchange here

Segment = tuple[int, int, bytes]  # pid and descriptor of its owner, token

_network: Network | None = None  # of the running job, if it has several hosts


def start(
    topology: Topology,
    config: Config,
    check_arguments: Callable[[], str],
) -> None:
    """Starts the core on all ranks, or on none.

    It sets `state.epoch()` to that of the membership, even if it fails later.

    Args:
        topology: The place of this process.
        config: The settings.
        check_arguments: Checks the arguments of `init` and returns them as a
            text that must be equal on all ranks. If it raises, the other ranks
            are told.

    Raises:
        HvdError: Something went wrong on this rank or on another one. All ranks
            get the reason.
    """
    native = _native.core()
    if topology.size == 1:
        state.set_epoch(state.epoch() + 1)
        check_arguments()
        _init_core(native, topology, config, [os.getpid()], None)
        return
    rendezvous = bootstrap.join(topology, config, state.epoch(), log.warning)
    state.set_epoch(rendezvous.epoch)
    with rendezvous:
        call = check_arguments()
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


def set_gpu_libraries() -> None:
    """Tells the core where to look for CUDA and NCCL if there is no job.

    It uses the settings that `init()` would read now. In a job, `init()` has
    done it already.
    """
    if state.job() is None:
        gpu.set_libraries(Config.from_environ(os.environ))


def stop(reason: str) -> None:
    """Stops the core, which tells the peers `reason`."""
    global _network
    _native.core().shutdown(reason)
    if _network is not None:
        _network.stop()
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
        where = f"{_network.plan.num_hosts} hosts"
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
    global _network
    _check_equality(peers)
    plan = hosts.plan([peer["host"] for peer in peers], topology.rank)
    pids = [int(peer["pid"]) for peer in peers]
    pid, fd, token = peers[0]["segment"]
    segment = (pid, fd, base64.b16decode(token))
    where: Any = None
    if plan.num_hosts > 1:
        leaders = [peers[leader] for leader in plan.leaders]
        _network = Network(plan, leaders, rendezvous, config)
        try:
            started = _network.start(rendezvous)
        except BaseException:
            stop("`init()` failed")
            raise
        pids, segment = started.pids, started.segment
        where = started.hosts
    failure: Exception | None = None
    try:
        _init_core(native, topology, config, pids, segment, where)
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
) -> None:
    checks_stalls = not config.stall_check_disable
    # The stall warning is the only message that the core itself prints.
    warns = checks_stalls and config.log_level not in ("error", "fatal")
    _lead_nccl(config)
    gpu.set_libraries(config)
    native.set_local_topology(topology.local_rank, topology.local_size)
    native.init(
        rank=topology.rank,
        size=topology.size,
        epoch=state.epoch(),
        pids=pids,
        segment=segment,
        hosts=where,
        fusion_threshold_bytes=config.fusion_threshold_bytes,
        cache_capacity=config.cache_capacity,
        cycle_time_ms=config.cycle_time_ms,
        stall_warning_seconds=warns * config.stall_warning_seconds,
        stall_timeout_seconds=checks_stalls * config.stall_timeout_seconds,
        gpu_fusion_buffer_bytes=config.gpu_fusion_buffer_bytes,
        gpu_direct_bytes=config.gpu_direct_bytes,
        gpu_done_in_stream_order=config.gpu_async_completion,
    )


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
