"""What `hvdrun --dry-run` prints: which ranks would run where, and how."""

from __future__ import annotations

import shlex

from hvd_keras.run import arguments, launching
from hvd_keras.run.arguments import Options
from hvd_keras.run.placement import Plan, PlannedHost, span


def describe(options: Options, plan: Plan) -> str:
    """Returns a line for each host, and the command of each rank."""
    lines = [f"command: {shlex.join(options.command)}"]
    if plan.way == "hosts":
        lines.append(_describe_own(options, plan))
        return "\n".join(lines)
    agent = launching.agent_command(options.remote_python)
    places = plan.places([host.slots or 0 for host in plan.hosts])
    if plan.way == "slurm":
        names = [host.name for host in plan.hosts]
        argv = launching.srun_command(names, agent)
        lines.append(f"agents over: {shlex.join(argv)}")
    for host, place in zip(plan.hosts, places, strict=True):
        ranks = span(place.ranks())
        lines.append(f"{host.name}: {ranks}{_how(options, plan, host, agent)}")
    return "\n".join(lines)


def _how(
    options: Options, plan: Plan, host: PlannedHost, agent: list[str]
) -> str:
    if host.is_local:
        return ", this host"
    if plan.way == "slurm":
        return ""
    shell = options.remote_shell or launching.ssh_options(
        options.ssh_port, options.ssh_identity_file
    )
    argv = launching.shell_command(shell, host.name, agent)
    return f", over: {shlex.join(argv)}"


def _describe_own(options: Options, plan: Plan) -> str:
    index = arguments.node_rank(options)
    endpoint = arguments.endpoint(options).removeprefix("tcp:")
    return (
        f"host {index} of {len(plan.hosts)}: {options.num_proc} ranks; all "
        f"meet at {endpoint}"
    )
