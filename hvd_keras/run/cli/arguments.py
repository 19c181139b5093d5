"""The command line of hvdrun."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hvd_keras._common.version import package_version
from hvd_keras.config import LOG_LEVELS, did_you_mean
from hvd_keras.run.cli import config_file
from hvd_keras.run.spec import (
    GRACE_SECONDS,
    JobSpec,
    Meeting,
    Output,
    Reach,
    elastic,
    settings,
)
from hvd_keras.run.usage import UsageError

_DESCRIPTION = """Starts N processes of a command as the ranks of one job, on
this machine or on several, shows their output, and ends all of them when one
fails."""

_EPILOG = """The exit status is that of the first rank that failed, 128 + the
signal's number if a signal killed it. Rank 0 gets hvdrun's standard input; a
program on it, as in `hvdrun -np 2 python - < train.py`, goes to all ranks."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What the command line asks for: a job, or something else."""

    spec: JobSpec
    shows_settings: bool
    checks: bool
    trains: bool  # a test job, after the check
    config: str | None  # a file of these options, to print
    verify_steps: int | None  # None: it does not verify
    is_json: bool
    is_dry_run: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        _, _, wrong = message.partition("unrecognized arguments: ")
        option = wrong.partition(" ")[0].partition("=")[0]
        hint = did_you_mean(option, self._option_string_actions)
        raise UsageError(f"error: {message}{'.' if hint else ''}{hint}")


def parse(argv: Sequence[str]) -> CommandLine:
    """Reads the command line.

    Raises:
        UsageError: It is malformed.
    """
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        import argcomplete

        argcomplete.autocomplete(parser)
    options = parser.parse_args(argv)
    if options.config is not None:
        from_file = config_file.read(parser, options.config)
        of_file = parser.parse_args(from_file)
        words = from_file[: len(from_file) - len(of_file.command)]
        options = parser.parse_args([*words, *argv])
        options.command = options.command or of_file.command
    if options.train and not options.check:
        raise UsageError("error: `--train` must be given with --check.")
    return CommandLine(
        _spec(options),
        shows_settings=options.help_env,
        checks=options.check,
        trains=options.train,
        config=(
            config_file.render(parser, options)
            if options.print_config
            else None
        ),
        verify_steps=options.verify_steps if options.verify else None,
        is_json=options.json,
        is_dry_run=options.dry_run,
    )


def _spec(options: argparse.Namespace) -> JobSpec:
    command = options.command
    is_one_script = options.distribute and not options.show_ranks
    return JobSpec(
        tuple(command[1:] if command[:1] == ["--"] else command),
        options.num_proc,
        options.hosts,
        options.hostfile,
        Meeting(
            options.nnodes,
            options.node_rank,
            options.rdzv_endpoint,
            options.master_addr,
            options.master_port,
        ),
        Reach(
            options.ssh_port,
            options.ssh_identity_file,
            options.remote_python,
        ),
        elastic(
            options.min_np,
            max_ranks=options.max_np,
            max_restarts=options.max_restarts,
            restart_delay=options.restart_delay,
            timeout=options.elastic_timeout,
            host_discovery_script=options.host_discovery_script,
            slots_per_host=options.slots_per_host,
            blacklist_cooldown=options.blacklist_cooldown,
            straggler_factor=options.evict_stragglers,
        ),
        Output(
            options.output_dir,
            options.tag and not is_one_script,
            options.timestamp,
            options.show_ranks or (0,) * is_one_script,
            options.verbose,
            options.status_seconds if options.status else None,
            options.timeline,
            options.report,
        ),
        options.grace,
        options.horovod_compat,
        tuple(options.export),
        _settings(options),
    )


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """The settings (environment variables) that the flags ask for."""
    if options.autotune_gaussian_process_noise is not None:
        logging.getLogger("hvd_keras").warning(
            "hvdrun: `--autotune-gaussian-process-noise` has no meaning here: "
            "the search tries settings in turns, without a model of noise."
        )
    threshold = options.fusion_threshold_mb
    distribute = None
    if options.distribute or options.keras_distribution:
        distribute = "script" if options.distribute else "keras"
    return settings(
        HVD_DISTRIBUTE=distribute,
        HVD_STRICT="1" if options.strict else None,
        HVD_START_TIMEOUT=options.start_timeout,
        HVD_FUSION_THRESHOLD=(
            None if threshold is None else int(threshold * (1 << 20))
        ),
        HVD_CYCLE_TIME=options.cycle_time_ms,
        HVD_AUTOTUNE=None if options.autotune is None else +options.autotune,
        HVD_AUTOTUNE_LOG=_absolute(options.autotune_log_file),
        HVD_AUTOTUNE_WARMUP_SAMPLES=options.autotune_warmup_samples,
        HVD_AUTOTUNE_STEPS_PER_SAMPLE=options.autotune_steps_per_sample,
        HVD_AUTOTUNE_MAX_SAMPLES=options.autotune_max_samples,
        HVD_AUTOTUNE_CACHE=(
            options.autotune_cache
            if options.autotune_cache == "none"
            else _absolute(options.autotune_cache)
        ),
        HVD_CACHE_CAPACITY=options.cache_capacity,
        HVD_STALL_CHECK_TIME_SECONDS=(options.stall_check_warning_time_seconds),
        HVD_STALL_SHUTDOWN_TIME_SECONDS=(
            options.stall_check_shutdown_time_seconds
        ),
        HVD_STALL_CHECK_DISABLE="1" if options.no_stall_check else None,
        HVD_LOG_LEVEL=options.log_level,
        HVD_INTERFACE=options.interface,
        HVD_TELL_STATUS="1" if options.status else None,
        HVD_STRAGGLER_FACTOR=options.evict_stragglers,
        HVD_TIMELINE=_absolute(options.timeline),
        HVD_TIMELINE_MARK_CYCLES="1" if options.timeline_mark_cycles else None,
    )


def _absolute(path: str | None) -> str | None:
    """Returns the path as it is for ranks that change their directory."""
    return path and os.path.abspath(path)


def _ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ranks = [-1]
    if ranks[0] < 0:
        raise argparse.ArgumentTypeError(
            f"must be ranks such as 0,1. Received: {text!r}"
        )
    return tuple(ranks)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
    add("--train", action="store_true",
        help="with --check: also train a small model on -np ranks (2), compare "
        "it with one process, and measure the allreduce")  # fmt: skip
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
    add("--grace", type=float, default=GRACE_SECONDS, metavar="SECONDS",
        help="time for the ranks to end by themselves after one has failed or "
        "after Ctrl-C (default: 10)")  # fmt: skip
    add("--start-timeout", type=float, metavar="SECONDS",
        help="time for all ranks to call init() (default: 120)")  # fmt: skip
    add("-v", "--verbose", action="store_true",
        help="print each start and end, and all ranks' start lines of "
        "TensorFlow; with --check, what hvd_keras replaces in Keras and "
        "TensorFlow")  # fmt: skip
    add("--strict", action="store_true",
        help="make each warning of hvd_keras an error, for tests and CI"
        )  # fmt: skip
    add("--distribute", action="store_true",
        help="share the work of `fit`, `evaluate` and `predict` in a Keras "
        "script that knows nothing of ranks (see docs/distribute.md)"
        )  # fmt: skip
    add("--keras-distribution", action="store_true",
        help="make the ranks the processes of `keras.distribution` (see "
        "docs/distribute.md)")  # fmt: skip
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
    add("--config", metavar="FILE",
        help="take options from a TOML file: their long names, `command`, and "
        "variables in [env]; those given here count more")  # fmt: skip
    add("--print-config", action="store_true",
        help="print such a file for this command line, and exit")  # fmt: skip
    add("--dry-run", action="store_true",
        help="print what would run where, and exit")  # fmt: skip
    _add_elastic(parser.add_argument_group(
        "elastic jobs (see docs/launcher.md)"))  # fmt: skip
    _add_hosts(parser.add_argument_group(
        "several hosts (see docs/launcher.md)"))  # fmt: skip
    return parser


def _add_elastic(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--min-np", "--min-num-proc", type=int, metavar="N",
        help="go on while N ranks are left: ranks may die, leave and join"
        )  # fmt: skip
    add("--max-np", "--max-num-proc", type=int, metavar="N",
        help="have at most N ranks (default: -np)")  # fmt: skip
    add("--max-restarts", "--reset-limit", type=int, default=3, metavar="K",
        help="start failed ranks again, K times (3)")  # fmt: skip
    add("--restart-delay", type=float, default=1.0, metavar="SECONDS",
        help="time before that (1)")  # fmt: skip
    add("--elastic-timeout", type=float, default=600.0, metavar="SECONDS",
        help="how long to wait for --min-np ranks (600)")  # fmt: skip
    add("--host-discovery-script", metavar="FILE",
        help="a program that prints the hosts, as host:N; it runs each second"
        )  # fmt: skip
    add("--slots-per-host", type=int, default=1, metavar="N",
        help="slots of a host that it prints without :N (1)")  # fmt: skip
    add("--blacklist-cooldown", "--blacklist-cooldown-range", nargs=2,
        type=float, metavar=("MIN", "MAX"),
        help="a host whose ranks fail gets no new ones for MIN seconds, twice "
        "as long each time, up to MAX; lost hosts are tried again then"
        )  # fmt: skip
    add("--evict-stragglers", type=float, metavar="FACTOR",
        help="have a rank leave that makes most steps longer by this factor, "
        "and start another after a minute (see HVD_STRAGGLER_SECONDS)"
        )  # fmt: skip


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
    add("--show-ranks", type=_ranks, default=(), metavar="R,R,...",
        help="show the output of these ranks only")  # fmt: skip


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--fusion-threshold-mb", type=float, metavar="MIB")
    add("--cycle-time-ms", type=float, metavar="MS")
    add("--autotune", action=argparse.BooleanOptionalAction,
        help="look for the fusion threshold and cycle time with which steps "
        "are quickest (see docs/tuning.md)")  # fmt: skip
    add("--autotune-log-file", metavar="FILE",
        help="write what it tries as CSV")  # fmt: skip
    add("--autotune-warmup-samples", type=int, metavar="N")
    add("--autotune-steps-per-sample", type=int, metavar="N")
    add("--autotune-max-samples", "--autotune-bayes-opt-max-samples",
        type=int, metavar="N")  # fmt: skip
    add("--autotune-gaussian-process-noise", help=argparse.SUPPRESS)
    add("--autotune-cache", metavar="DIR",
        help="where its findings stay for the next run; `none`: nowhere"
        )  # fmt: skip
    add("--cache-capacity", type=int, metavar="N")
    add("--stall-check-warning-time-seconds", type=float, metavar="S")
    add("--stall-check-shutdown-time-seconds", type=float, metavar="S")
    add("--no-stall-check", action="store_true")
    add("--log-level", type=str.lower, choices=LOG_LEVELS)
