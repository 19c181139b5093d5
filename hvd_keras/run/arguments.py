"""The command line of hvdrun."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence

from hvd_keras._common.version import package_version
from hvd_keras._job.bootstrap import addresses, detect, launchers
from hvd_keras.config import LOG_LEVELS
from hvd_keras.exceptions import LaunchError
from hvd_keras.run import elastic_arguments, placement
from hvd_keras.run.placement import Plan
from hvd_keras.run.usage import UsageError

_DESCRIPTION = """Starts N processes of a command as the ranks of one job, on
this machine or on several, shows their output, and ends all of them when one
fails."""

_EPILOG = """The exit status is that of the first rank that failed, 128 + the
signal's number if a signal killed it. Rank 0 gets hvdrun's standard input; a
program on it, as in `hvdrun -np 2 python - < train.py`, goes to all ranks."""

_NO_COMMAND = "The command is missing, as in: hvdrun -np 2 python train.py"


class Options(argparse.Namespace):
    """The parsed command line; see the help texts in `_parser`."""

    command: list[str]
    num_proc: int | None
    output_dir: str | None
    tag: bool
    timestamp: bool
    timeline: str | None
    timeline_mark_cycles: bool
    report: str | None
    show_ranks: set[int] | None
    grace: float
    verbose: bool
    check: bool
    verify: bool
    verify_steps: int
    json: bool
    help_env: bool
    hosts: str | None
    hostfile: str | None
    nnodes: str | None
    node_rank: int | None
    rdzv_endpoint: str | None
    master_addr: str | None
    master_port: int | None
    ssh_port: int | None
    ssh_identity_file: str | None
    remote_python: str | None
    remote_shell: list[str] | None
    interface: str | None
    export: list[str]
    dry_run: bool
    status: bool
    status_seconds: float
    start_timeout: float | None
    fusion_threshold_mb: float | None
    cycle_time_ms: float | None
    cache_capacity: int | None
    stall_check_warning_time_seconds: float | None
    stall_check_shutdown_time_seconds: float | None
    no_stall_check: bool
    log_level: str | None
    horovod_compat: bool
    host_discovery_script: str | None
    slots_per_host: int
    blacklist_cooldown: list[float] | None
    evict_stragglers: float | None
    min_np: int | None
    max_np: int | None
    max_restarts: int
    restart_delay: float
    elastic_timeout: float
    # Of a job that runs a function; see `function_job`.
    program: int | None = None  # a descriptor: what each rank gets as input
    results_dir: str | None = None

    def settings(self) -> dict[str, str]:
        """The settings (environment variables) that the flags ask for."""
        threshold = self.fusion_threshold_mb
        values = {
            "HVD_START_TIMEOUT": self.start_timeout,
            "HVD_FUSION_THRESHOLD": None
            if threshold is None
            else int(threshold * (1 << 20)),
            "HVD_CYCLE_TIME": self.cycle_time_ms,
            "HVD_CACHE_CAPACITY": self.cache_capacity,
            "HVD_STALL_CHECK_TIME_SECONDS": (
                self.stall_check_warning_time_seconds
            ),
            "HVD_STALL_SHUTDOWN_TIME_SECONDS": (
                self.stall_check_shutdown_time_seconds
            ),
            "HVD_STALL_CHECK_DISABLE": "1" if self.no_stall_check else None,
            "HVD_LOG_LEVEL": self.log_level,
            "HVD_INTERFACE": self.interface,
            "HVD_TELL_STATUS": "1" if self.status else None,
            "HVD_STRAGGLER_FACTOR": self.evict_stragglers,
            # Ranks may change their directory.
            "HVD_TIMELINE": self.timeline and os.path.abspath(self.timeline),
            "HVD_TIMELINE_MARK_CYCLES": (
                "1" if self.timeline_mark_cycles else None
            ),
        }
        return {n: str(v) for n, v in values.items() if v is not None}

    def given_variables(self) -> dict[str, str]:
        """The variables that `-x NAME=VALUE` sets."""
        pairs = (one.partition("=") for one in self.export)
        return {name: value for name, equals, value in pairs if equals}

    def exported(self) -> tuple[str, ...]:
        """The names of all `-x`."""
        return tuple(one.partition("=")[0] for one in self.export)


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; ends the process if it is malformed."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        import argcomplete

        argcomplete.autocomplete(parser)
    options = parser.parse_args(argv, namespace=Options())
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    return options


def fill_from_environ(options: Options, environ: Mapping[str, str]) -> None:
    """Takes what the command line leaves out from Kubernetes.

    Kubeflow's torch runtime sets PET_*, an indexed Job JOB_COMPLETION_INDEX.
    """
    is_given = (options.hosts, options.hostfile) != (None, None)
    if is_given or options.help_env or options.check:
        return
    if options.nnodes is None and launchers.num_pet_hosts(environ) > 1:
        options.nnodes = environ["PET_NNODES"]
    if options.nnodes in (None, "1", "1:1"):
        return
    per_host = environ.get("PET_NPROC_PER_NODE", "")
    if options.num_proc is None and per_host.isdigit():
        options.num_proc = int(per_host)
    for name in ("PET_NODE_RANK", "JOB_COMPLETION_INDEX"):
        if options.node_rank is None and environ.get(name, "").isdigit():
            options.node_rank = int(environ[name])
    address = options.master_addr or environ.get("PET_MASTER_ADDR")
    port = options.master_port or environ.get("PET_MASTER_PORT")
    if options.rdzv_endpoint is None:
        options.rdzv_endpoint = environ.get("PET_RDZV_ENDPOINT") or None
    if options.rdzv_endpoint is None and address and port:
        options.rdzv_endpoint = f"{address}:{port}"


def plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """Returns which hosts get how many ranks.

    Raises:
        UsageError: hvdrun cannot do what `options` ask for.
    """
    found = _plan(options, environ)
    if found.is_of_one_host:
        slots = sum(host.slots or 0 for host in found.hosts)
        _check_num_proc(found.num_ranks or slots or None)
        check_command(options.command)
    elif not options.command:
        raise UsageError(_NO_COMMAND)
    elif found.way != "hosts" and not found.may_grow and not options.max_np:
        found = found.without_idle_hosts()
    if options.grace < 0:
        raise UsageError(
            f"`--grace` must be 0 or more. Received: {options.grace:g}."
        )
    elastic_arguments.check(options, found)
    if options.min_np is None and found.num_ranks is not None:
        check_shown_ranks(options, found.num_ranks)
    return found


def check_shown_ranks(options: Options, size: int) -> None:
    """Raises UsageError if `--show-ranks` names a rank that is not there."""
    for rank in options.show_ranks or ():
        if rank >= size:
            raise UsageError(
                f"`--show-ranks` must be in [0, {size}). Received: {rank}."
            )


def endpoint(options: Options) -> str:
    """Returns the address of the job if each host runs hvdrun.

    Raises:
        UsageError: The command line does not say it, or nonsense.
    """
    text = options.rdzv_endpoint
    if text is None or addresses.host_and_port(text) is None:
        raise UsageError(
            "`--rdzv-endpoint` must be HOST:PORT of the first host. "
            f"Received: {'none' if text is None else repr(text)}."
        )
    host, port = addresses.host_and_port(text) or ("", 0)
    return addresses.of_tcp(host, port)


def num_hosts(options: Options) -> int:
    """Returns how many hosts run hvdrun, as `--nnodes` says; usually 1."""
    return _range_of_hosts(options)[1]


def _range_of_hosts(options: Options) -> tuple[int, int]:
    """Returns the least and the greatest number of hosts that run hvdrun."""
    text = options.nnodes or "1"
    first, _, last = text.partition(":")
    last = last or first
    is_range = first.isdecimal() and last.isdecimal()
    if is_range and 1 <= int(first) <= int(last):
        fewest, most = int(first), int(last)
        if fewest == most or options.min_np is not None:
            return fewest, most
    raise UsageError(
        "`--nnodes` must be a number of hosts, or MIN:MAX with --min-np. "
        f"Received: {text!r}."
    )


def node_rank(options: Options) -> int:
    """Returns the index of this host among those that run hvdrun."""
    count, index = num_hosts(options), options.node_rank
    if index is None or not 0 <= index < count:
        raise UsageError(
            f"`--node-rank` must be in [0, {count}). Received: "
            f"{'none' if index is None else index}."
        )
    return index


def listed_hosts(
    options: Options,
) -> list[tuple[str, int | None]] | None:
    """Returns the names and slots of `-H` or `--hostfile`, if there are any."""
    if options.hosts is not None:
        return placement.parse_hosts(options.hosts)
    if options.hostfile is not None:
        return placement.read_hostfile(options.hostfile)
    return None


def _plan(options: Options, environ: Mapping[str, str]) -> Plan:
    listed = listed_hosts(options)
    count = num_hosts(options)
    if count > 1:
        if listed is not None:
            raise UsageError(
                "`--nnodes` and a list of hosts must not be given together: "
                "with a list, hvdrun starts the other hosts by itself."
            )
        _check_num_proc(options.num_proc)
        check_command(options.command)
        of_hosts = placement.of_num_hosts(count, options.num_proc or 1)
        fewest, _ = _range_of_hosts(options)
        return dataclasses.replace(
            of_hosts, may_grow=options.min_np is not None, min_hosts=fewest
        )
    if options.num_proc is not None:
        _check_num_proc(options.num_proc, num_machines=4096)
    if options.host_discovery_script is not None:
        return elastic_arguments.discovered(options, listed)
    if listed is not None:
        return placement.of_hosts(listed, options.num_proc)
    found = placement.of_slurm(environ, options.num_proc)
    return found or placement.of_this_host(options.num_proc or 0)


def _check_num_proc(number: int | None, num_machines: int = 1) -> None:
    if number is None:
        raise UsageError("`-np N` is missing: give the number of ranks.")
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


def _ranks(text: str) -> set[int]:
    try:
        ranks = {int(part) for part in text.split(",")}
    except ValueError:
        ranks = {-1}
    if min(ranks) < 0:
        raise argparse.ArgumentTypeError(
            f"must be ranks such as 0,1. Received: {text!r}"
        )
    return ranks


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hvdrun",
        usage="hvdrun -np N [options] [--] command ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add(
        "-np", "--np", "-n", "--num-proc", "--nproc-per-node",
        dest="num_proc", type=int, metavar="N", help="number of ranks",
    )  # fmt: skip
    add("--check", "-cb", "--check-build", action="store_true",
        help="print what is built and found, and exit; with -H, try the hosts "
        "and the network between them")  # fmt: skip
    add("--verify", action="store_true",
        help="run the script's first steps on N ranks and on one process, and "
        "say whether they are equal: exit status 0, else 1; 2 if they could "
        "not be compared (see docs/verify.md)")  # fmt: skip
    add("--verify-steps", type=int, default=20, metavar="K",
        help="how many steps (20)")  # fmt: skip
    add("--json", action="store_true",
        help="print the result of --verify as JSON")  # fmt: skip
    add("--help-env", action="store_true",
        help="print all settings (environment variables), and exit"
        )  # fmt: skip
    add("--version", action="version",
        version=f"hvd_keras {package_version()}")  # fmt: skip
    add("--grace", type=float, default=10.0, metavar="SECONDS",
        help="time for the ranks to end by themselves after one has failed or "
        "after Ctrl-C (default: 10)")  # fmt: skip
    add("--start-timeout", type=float, metavar="SECONDS",
        help="time for all ranks to call init() (default: 120)")  # fmt: skip
    add("-v", "--verbose", action="store_true",
        help="print each start and end, and all ranks' start lines of "
        "TensorFlow; with --check, what hvd_keras replaces in Keras and "
        "TensorFlow")  # fmt: skip
    add("--horovod-compat", action="store_true",
        help="make `import horovod` import hvd_keras in the ranks (see "
        "docs/horovod.md)")  # fmt: skip
    _add_output(parser.add_argument_group("output"))
    _add_tuning(parser.add_argument_group("tuning (see --help-env)"))
    add("--status", action="store_true",
        help="print a table of the ranks now and then: step, rate, share of "
        "the time in which collectives wait or run, memory")  # fmt: skip
    add("--status-seconds", type=float, default=10.0, metavar="SECONDS",
        help="time between two tables (10)")  # fmt: skip
    add("--dry-run", action="store_true",
        help="print what would run where, and exit")  # fmt: skip
    elastic_arguments.add_to(parser.add_argument_group(
        "elastic jobs (see docs/launcher.md)"))  # fmt: skip
    _add_hosts(parser.add_argument_group(
        "several hosts (see docs/launcher.md)"))  # fmt: skip
    return parser


def _add_hosts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-H", "--hosts", metavar="HOST:N,...",
        help="start ranks on these hosts over ssh, up to N on each"
        )  # fmt: skip
    add("-hostfile", "--hostfile", metavar="FILE",
        help="the same, from lines `host slots=N` or `host:N`")  # fmt: skip
    add("-p", "--ssh-port", type=int, metavar="PORT")
    add("-i", "--ssh-identity-file", metavar="FILE")
    add("--remote-python", metavar="PATH",
        help="Python on the other hosts (default: this one's path)"
        )  # fmt: skip
    # Of systems that start agents by themselves, such as `hvd_keras.ray`.
    add("--remote-shell", type=shlex.split, help=argparse.SUPPRESS)
    add("-x", dest="export", action="append", default=[], metavar="NAME",
        help="give the other hosts this variable too, or NAME=VALUE"
        )  # fmt: skip
    add("--nnodes", metavar="N",
        help="N hosts run hvdrun, each starts -np ranks")  # fmt: skip
    add("--node-rank", type=int, metavar="R",
        help="the index of this host among them")  # fmt: skip
    add("--rdzv-endpoint", metavar="HOST:PORT",
        help="host 0, and a port that is free there")  # fmt: skip
    add("--master-addr", help=argparse.SUPPRESS)
    add("--master-port", type=int, help=argparse.SUPPRESS)
    add("--interface", "--network-interfaces", metavar="NAME",
        help="listen to the other hosts at this interface or address"
        )  # fmt: skip


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output-dir", "--output-filename", metavar="DIR",
        help="write the output to DIR/rank.N/stdout and stderr")  # fmt: skip
    add("--timeline", "--timeline-filename", metavar="DIR",
        help="record what all ranks do, and make DIR/job.json of it (see "
        "docs/timeline.md)")  # fmt: skip
    add("--timeline-mark-cycles", action=argparse.BooleanOptionalAction,
        help=argparse.SUPPRESS)  # fmt: skip
    add("--report", metavar="FILE",
        help="write a page on where the time went (see docs/report.md); "
        "records into a temporary folder unless --timeline names one"
        )  # fmt: skip
    add("--tag", action=argparse.BooleanOptionalAction, default=True,
        help="put `[rank] ` before each line (default)")  # fmt: skip
    add("--timestamp", "--prefix-output-with-timestamp", action="store_true",
        help="put date and time before each line")  # fmt: skip
    add("--show-ranks", type=_ranks, metavar="R,R,...",
        help="show the output of these ranks only")  # fmt: skip


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--fusion-threshold-mb", type=float, metavar="MIB")
    add("--cycle-time-ms", type=float, metavar="MS")
    add("--cache-capacity", type=int, metavar="N")
    add("--stall-check-warning-time-seconds", type=float, metavar="S")
    add("--stall-check-shutdown-time-seconds", type=float, metavar="S")
    add("--no-stall-check", action="store_true")
    add("--log-level", type=str.lower, choices=LOG_LEVELS)
