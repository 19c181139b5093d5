"""Which hosts and ranks a job gets, and whether it can be run so."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shutil
from collections.abc import Mapping, Sequence

from hvd_keras._rendezvous import addresses, detect, launchers
from hvd_keras.exceptions import LaunchError
from hvd_keras.run.hosts import discovery, placement
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.spec import Elastic, JobSpec
from hvd_keras.run.usage import UsageError

_PROGRAMS = ("python", "python3", "pytest")
_NO_COMMAND = "The command is missing, as in: hvdrun -np 2 python train.py"


def filled_from_environ(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """Takes what `spec` leaves out from Kubernetes.

    Kubeflow's torch runtime sets PET_*, an indexed Job JOB_COMPLETION_INDEX.
    """
    if (spec.hosts, spec.hostfile) != (None, None):
        return spec
    meeting, num_ranks = spec.meeting, spec.num_ranks
    count, host = meeting.num_hosts, meeting.host
    if count is None and launchers.num_pet_hosts(environ) > 1:
        count = environ["PET_NNODES"]
    if count in (None, "1", "1:1"):
        return spec
    per_host = environ.get("PET_NPROC_PER_NODE", "")
    if num_ranks is None and per_host.isdigit():
        num_ranks = int(per_host)
    for name in ("PET_NODE_RANK", "JOB_COMPLETION_INDEX"):
        if host is None and environ.get(name, "").isdigit():
            host = int(environ[name])
    address = meeting.address or environ.get("PET_MASTER_ADDR")
    port = meeting.port or environ.get("PET_MASTER_PORT")
    at = meeting.endpoint
    if at is None:
        at = environ.get("PET_RDZV_ENDPOINT") or None
    if at is None and address and port:
        at = f"{address}:{port}"
    meeting = dataclasses.replace(
        meeting, num_hosts=count, host=host, endpoint=at
    )
    return dataclasses.replace(spec, meeting=meeting, num_ranks=num_ranks)


def plan(spec: JobSpec, environ: Mapping[str, str]) -> Plan:
    """Returns which hosts get how many ranks.

    Raises:
        UsageError: hvdrun cannot do what `spec` asks for.
    """
    found = _plan(spec, environ)
    has_most = spec.elastic is not None and spec.elastic.max_ranks
    if found.is_of_one_host:
        slots = sum(host.slots or 0 for host in found.hosts)
        _check_num_proc(found.num_ranks or slots or None, spec.command)
        check_command(spec.command)
    elif not spec.command:
        raise UsageError(_NO_COMMAND)
    elif found.way != "hosts" and not found.may_grow and not has_most:
        found = found.without_idle_hosts()
    if spec.grace < 0:
        raise UsageError(
            f"`--grace` must be 0 or more. Received: {spec.grace:g}."
        )
    _check_elastic(spec, found)
    if spec.elastic is None and found.num_ranks is not None:
        check_shown_ranks(spec, found.num_ranks)
    return found


def check_shown_ranks(spec: JobSpec, size: int) -> None:
    """Raises UsageError if `--show-ranks` names a rank that is not there."""
    for rank in spec.output.shown_ranks:
        if not 0 <= rank < size:
            raise UsageError(
                f"`--show-ranks` must be in [0, {size}). Received: {rank}."
            )


def endpoint(spec: JobSpec) -> str:
    """Returns the address of the job if each host runs hvdrun.

    Raises:
        UsageError: The command line does not say it, or nonsense.
    """
    text = spec.meeting.endpoint
    if text is None or addresses.host_and_port(text) is None:
        raise UsageError(
            "`--rdzv-endpoint` must be HOST:PORT of the first host. "
            f"Received: {'none' if text is None else repr(text)}."
        )
    host, port = addresses.host_and_port(text) or ("", 0)
    return addresses.of_tcp(host, port)


def num_hosts(spec: JobSpec) -> int:
    """Returns how many hosts run hvdrun, as `--nnodes` says; usually 1."""
    return _range_of_hosts(spec)[1]


def _range_of_hosts(spec: JobSpec) -> tuple[int, int]:
    """Returns the least and the greatest number of hosts that run hvdrun."""
    text = spec.meeting.num_hosts or "1"
    first, _, last = text.partition(":")
    last = last or first
    is_range = first.isdecimal() and last.isdecimal()
    if is_range and 1 <= int(first) <= int(last):
        fewest, most = int(first), int(last)
        if fewest == most or spec.elastic is not None:
            return fewest, most
    raise UsageError(
        "`--nnodes` must be a number of hosts, or MIN:MAX with --min-np. "
        f"Received: {text!r}."
    )


def node_rank(spec: JobSpec) -> int:
    """Returns the index of this host among those that run hvdrun."""
    count, index = num_hosts(spec), spec.meeting.host
    if index is None or not 0 <= index < count:
        raise UsageError(
            f"`--node-rank` must be in [0, {count}). Received: "
            f"{'none' if index is None else index}."
        )
    return index


def listed_hosts(
    spec: JobSpec,
) -> list[tuple[str, int | None]] | None:
    """Returns the names and slots of `-H` or `--hostfile`, if there are any."""
    if spec.hosts is not None:
        return placement.parse_hosts(spec.hosts)
    if spec.hostfile is not None:
        return placement.read_hostfile(spec.hostfile)
    return None


def _plan(spec: JobSpec, environ: Mapping[str, str]) -> Plan:
    listed = listed_hosts(spec)
    count = num_hosts(spec)
    if count > 1:
        if listed is not None:
            raise UsageError(
                "`--nnodes` and a list of hosts must not be given together: "
                "with a list, hvdrun starts the other hosts by itself."
            )
        _check_num_proc(spec.num_ranks, spec.command)
        check_command(spec.command)
        of_hosts = placement.of_num_hosts(count, spec.num_ranks or 1)
        fewest, _ = _range_of_hosts(spec)
        return dataclasses.replace(
            of_hosts, may_grow=spec.elastic is not None, min_hosts=fewest
        )
    if spec.num_ranks is not None:
        _check_num_proc(spec.num_ranks, num_machines=4096)
    if spec.provision is not None:
        return placement.of_provider(spec.provision.hosts, spec.num_ranks)
    if spec.elastic is not None and spec.elastic.host_discovery_script:
        return _discovered(spec, spec.elastic, listed)
    if listed is not None:
        return placement.of_hosts(listed, spec.num_ranks)
    found = placement.of_slurm(environ, spec.num_ranks)
    return found or placement.of_this_host(spec.num_ranks or 0)


def _check_elastic(spec: JobSpec, plan: Plan) -> None:
    """Raises UsageError if the numbers of an elastic job make no sense."""
    elastic = spec.elastic
    if elastic is None:
        return
    factor = elastic.straggler_factor
    if factor is not None and factor <= 1:
        raise UsageError(
            f"`--evict-stragglers` must be over 1. Received: {factor:g}."
        )
    low, high = elastic.min_ranks, elastic.max_ranks or plan.num_ranks
    if low < 1 or (high is not None and low > high):
        raise UsageError(
            "`--min-np` must be in [1, --max-np]. Received: "
            f"--min-np {low}, --max-np {high}."
        )
    for name, value in (
        ("--max-restarts", elastic.max_restarts),
        ("--restart-delay", elastic.restart_delay),
        ("--elastic-timeout", elastic.timeout),
    ):
        if value < 0:
            raise UsageError(
                f"`{name}` must be 0 or more. Received: {value:g}."
            )
    least, most = elastic.blacklist_cooldown or (0.0, 0.0)
    if not 0 <= least <= most:
        raise UsageError(
            "`--blacklist-cooldown` must be two numbers of seconds, the lower "
            f"one first. Received: {least:g} {most:g}."
        )


def _discovered(
    spec: JobSpec,
    elastic: Elastic,
    listed: list[tuple[str, int | None]] | None,
) -> Plan:
    """Returns the plan of a job whose hosts a program names.

    Raises:
        UsageError: It fails, or there is a list of hosts too.
    """
    if listed is not None:
        raise UsageError(
            "`--host-discovery-script` must be given with --min-np, and "
            "without a list of hosts."
        )
    script = elastic.host_discovery_script or ""
    found = discovery.ask(script, elastic.slots_per_host)
    hosts = placement.of_hosts([*found.items()], None)
    return dataclasses.replace(
        hosts, way="ssh", num_ranks=spec.num_ranks, may_grow=True
    )


def _check_num_proc(
    number: int | None, command: Sequence[str] = (), num_machines: int = 1
) -> None:
    if number is None:
        names = ("-np", "--np", "--num-proc", "--nproc-per-node")
        is_late = any(word in names for word in command)
        late = "before the command, behind which all is its own"
        raise UsageError(
            f"`-np N` is missing{' ' + late if is_late else ''}: give the "
            "number of ranks, as in `hvdrun -np 2 python train.py`. "
            "`hvdrun --help` tells all."
        )
    limit = max(256, 16 * (os.cpu_count() or 1)) * num_machines
    if not 1 <= number <= limit:
        raise UsageError(
            f"`-np` must be in [1, {limit}] on this machine. Received: "
            f"{number}."
        )


def check_outer_launcher(environ: Mapping[str, str]) -> None:
    """Raises UsageError if hvdrun itself is a rank of another job."""
    outer = {n: v for n, v in environ.items() if not n.startswith("HVD_")}
    try:
        topology = detect(outer)
    except LaunchError as error:
        raise UsageError(f"Start hvdrun once, by itself. {error}") from None
    if topology.size > 1:
        raise UsageError(
            "Start hvdrun once; it starts the ranks itself. "
            f"Received: rank {topology.rank} of {topology.size} of "
            f"{topology.launcher}. {topology.launcher} can also "
            "start the ranks, without hvdrun."
        )


def check_command(command: Sequence[str], path: str | None = None) -> None:
    """Raises UsageError if `command` cannot be run.

    Args:
        command: The program and its arguments.
        path: Where to search the program; None: in PATH.
    """
    if not command:
        raise UsageError(_NO_COMMAND)
    program = command[0]
    if shutil.which(program, path=path) is not None:
        return
    hint = ""
    if program.endswith(".py"):
        hint = f" Did you mean: python {program}?"
    elif near := difflib.get_close_matches(program, _PROGRAMS, 1):
        hint = f" Did you mean: {near[0]}?"
    if os.path.exists(program) and os.sep in program:
        raise UsageError(
            f"The command must be executable. Received: {program!r}.{hint}",
            126,
        )
    raise UsageError(
        f"The command must exist. Received: {program!r}, which is neither a "
        f"program in PATH nor an executable file.{hint}",
        127,
    )
