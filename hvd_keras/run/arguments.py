"""The command line of hvdrun."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
from collections.abc import Mapping, Sequence

from hvd_keras._job.bootstrap import detect
from hvd_keras.config import LOG_LEVELS
from hvd_keras.exceptions import LaunchError

_DESCRIPTION = """Starts N processes of a command on this machine as the ranks
of one job, shows their output, and ends all of them when one fails."""

_EPILOG = """The exit status is that of the first rank that failed, 128 + the
signal's number if a signal killed it. Rank 0 gets hvdrun's standard input; a
program on it, as in `hvdrun -np 2 python - < train.py`, goes to all ranks."""

_SEVERAL_HOSTS = (
    "must stay on this machine: jobs on several hosts are not supported yet"
)


class UsageError(Exception):
    """hvdrun cannot do what the command line asks for."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Options(argparse.Namespace):
    """The parsed command line; see the help texts in `_parser`."""

    command: list[str]
    num_proc: int | None
    output_dir: str | None
    tag: bool
    timestamp: bool
    show_ranks: set[int] | None
    grace: float
    verbose: bool
    check: bool
    help_env: bool
    hosts: str | None
    hostfile: str | None
    nnodes: str | None
    start_timeout: float | None
    fusion_threshold_mb: float | None
    cycle_time_ms: float | None
    cache_capacity: int | None
    stall_check_warning_time_seconds: float | None
    stall_check_shutdown_time_seconds: float | None
    no_stall_check: bool
    log_level: str | None
    horovod_compat: bool

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
        }
        return {n: str(v) for n, v in values.items() if v is not None}


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; ends the process if it is malformed."""
    options = _parser().parse_args(argv, namespace=Options())
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    return options


def validate(options: Options) -> None:
    """Raises UsageError if hvdrun cannot do what `options` ask for."""
    _check_hosts(options)
    num_proc = options.num_proc
    if num_proc is None:
        raise UsageError("`-np N` is missing: give the number of ranks.")
    limit = max(256, 16 * (os.cpu_count() or 1))
    if not 1 <= num_proc <= limit:
        raise UsageError(
            f"`-np` must be in [1, {limit}] on this machine. Received: "
            f"{num_proc}."
        )
    if options.grace < 0:
        raise UsageError(
            f"`--grace` must be 0 or more. Received: {options.grace:g}."
        )
    for rank in options.show_ranks or ():
        if rank >= num_proc:
            raise UsageError(
                f"`--show-ranks` must be in [0, {num_proc}). Received: {rank}."
            )
    _check_command(options.command)


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


def _check_hosts(options: Options) -> None:
    if options.hostfile is not None:
        raise UsageError(f"The ranks {_SEVERAL_HOSTS}. Received: --hostfile.")
    if options.nnodes not in (None, "1", "1:1"):
        raise UsageError(
            f"The ranks {_SEVERAL_HOSTS}. Received: --nnodes {options.nnodes}."
        )
    if options.hosts is None:
        return
    hosts = {host.split(":")[0] for host in options.hosts.split(",")}
    if hosts - {"localhost", "127.0.0.1", "::1", socket.gethostname()}:
        raise UsageError(
            f"The ranks {_SEVERAL_HOSTS}. Received: -H {options.hosts}."
        )


def _check_command(command: list[str]) -> None:
    if not command:
        raise UsageError(
            "The command is missing, as in: hvdrun -np 2 python train.py"
        )
    program = command[0]
    if shutil.which(program) is not None:
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
        help="print what is built and found, and exit")  # fmt: skip
    add("--help-env", action="store_true",
        help="print all settings (environment variables), and exit"
        )  # fmt: skip
    add("--grace", type=float, default=10.0, metavar="SECONDS",
        help="time for the ranks to end by themselves after one has failed or "
        "after Ctrl-C (default: 10)")  # fmt: skip
    add("--start-timeout", type=float, metavar="SECONDS",
        help="time for all ranks to call init() (default: 120)")  # fmt: skip
    add("--verbose", action="store_true",
        help="print each start and end, and all ranks' start lines of "
        "TensorFlow")  # fmt: skip
    add("--horovod-compat", action="store_true",
        help="make `import horovod` import hvd_keras in the ranks (see "
        "docs/horovod.md)")  # fmt: skip
    _add_output(parser.add_argument_group("output"))
    _add_tuning(parser.add_argument_group("tuning (see --help-env)"))
    hosts = parser.add_argument_group("hosts (only this machine so far)")
    hosts.add_argument("-H", "--hosts", help="localhost:N")
    hosts.add_argument("-hostfile", "--hostfile", help=argparse.SUPPRESS)
    hosts.add_argument("--nnodes", help=argparse.SUPPRESS)
    return parser


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output-dir", "--output-filename", metavar="DIR",
        help="write the output to DIR/rank.N/stdout and stderr")  # fmt: skip
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
