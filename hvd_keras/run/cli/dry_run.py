"""What `hvdrun --dry-run` prints: which ranks would run where, and how."""

from __future__ import annotations

import shlex

from hvd_keras.run.hosts import launching, planning
from hvd_keras.run.hosts.placement import Plan, PlannedHost, span
from hvd_keras.run.spec import JobSpec


def describe(spec: JobSpec, plan: Plan) -> str:
    """Returns a line for each host, and the command of each rank."""
    lines = [f"command: {shlex.join(spec.command)}"]
    if plan.way == "hosts":
        lines.append(_describe_own(spec, plan))
        return "\n".join(lines)
    agent = launching.agent_command(spec.reach.python)
    places = plan.places([host.slots or 0 for host in plan.hosts])
    if plan.way == "slurm":
        names = [host.name for host in plan.hosts]
        argv = launching.srun_command(names, agent)
        lines.append(f"agents over: {shlex.join(argv)}")
    for host, place in zip(plan.hosts, places, strict=True):
        ranks = span(place.ranks())
        lines.append(f"{host.name}: {ranks}{_how(spec, plan, host, agent)}")
    return "\n".join(lines)


def _how(spec: JobSpec, plan: Plan, host: PlannedHost, agent: list[str]) -> str:
    if host.is_local:
        return ", this host"
    if plan.way == "slurm":
        return ""
    reach = spec.reach
    ssh = launching.ssh_options(reach.ssh_port, reach.ssh_identity_file)
    argv = launching.ssh_command(ssh, host.name, agent)
    return f", over: {shlex.join(argv)}"


def _describe_own(spec: JobSpec, plan: Plan) -> str:
    index = planning.node_rank(spec)
    endpoint = planning.endpoint(spec).removeprefix("tcp:")
    return (
        f"host {index} of {len(plan.hosts)}: {spec.num_ranks} ranks; all "
        f"meet at {endpoint}"
    )
