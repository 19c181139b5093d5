"""The entry point of `hvdrun` and of `python -m hvd_keras.run`."""
# PYTHON_ARGCOMPLETE_OK: shells look for this.

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Sequence

from hvd_keras._common.terminal import printable, tell
from hvd_keras.config import Config, render_table
from hvd_keras.exceptions import HvdError
from hvd_keras.run import (
    arguments,
    check,
    dry_run,
    horovod_compat,
    timeline,
    verify,
)
from hvd_keras.run.agent import Agent, Own
from hvd_keras.run.arguments import Options
from hvd_keras.run.check_hosts import HostsCheck
from hvd_keras.run.elastic import ElasticJob
from hvd_keras.run.file_limit import file_limit_named
from hvd_keras.run.gathering import StartInterruptedError
from hvd_keras.run.job import Job
from hvd_keras.run.outcome import Outcome
from hvd_keras.run.owned_folders import owned_folders
from hvd_keras.run.placement import Plan
from hvd_keras.run.usage import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs hvdrun.

    Args:
        argv: The command line without the program's name. Defaults to that
            of this process.

    Returns:
        The exit status: 0 if no rank failed, that of the first rank that
        failed (128 + the number of the signal that killed it), or 2 for a
        wrong command line.
    """
    _fill_standard_streams()
    options = arguments.parse(sys.argv[1:] if argv is None else argv)
    return start(options).exit_status


def start(options: Options) -> Outcome:
    """Does what `options` ask for, and says what it cannot do."""
    if options.help_env:
        print(render_table())
        return Outcome(0)
    try:
        if options.check:
            return Outcome(_check(options))
        return _run(options)
    except KeyboardInterrupt:  # there are no ranks yet
        return Outcome(128 + signal.SIGINT, "interrupted")
    except StartInterruptedError as interrupt:
        return Outcome(interrupt.exit_status, "interrupted")
    except (UsageError, HvdError, OSError) as error:
        tell("hvdrun", error)
        status = error.exit_status if isinstance(error, UsageError) else 2
        return Outcome(status, str(error))


def _run(options: Options) -> Outcome:
    environ = {**os.environ, **options.settings()}
    arguments.fill_from_environ(options, environ)
    plan = arguments.plan(options, environ)
    if plan.way != "hosts":
        arguments.check_outer_launcher(os.environ)
    environ.update(options.given_variables())
    own = sum(host.slots or 0 for host in plan.hosts if host.is_local)
    with file_limit_named(own):
        return _run_planned(options, environ, plan)


def _run_planned(
    options: Options, environ: dict[str, str], plan: Plan
) -> Outcome:
    if options.horovod_compat:
        environ["PYTHONPATH"] = horovod_compat.python_path(environ)
    # A bad setting is one message here, not one on every rank.
    config = Config.from_environ(environ)
    if options.dry_run:
        print(printable(dry_run.describe(options, plan)))
        return Outcome(0)
    if options.verify:
        return Outcome(verify.run(options, environ, plan, _run_job))
    if plan.way != "hosts" or arguments.node_rank(options) == 0:
        with (
            owned_folders([options.output_dir, options.timeline]),
            timeline.recorded(options, environ, plan),
        ):
            kind = Job if options.min_np is None else ElasticJob
            return kind(options, environ, plan).run()
    own = Own(
        options.command,
        environ,
        options.num_proc or 1,
        options.horovod_compat,
    )
    endpoint = arguments.endpoint(options)
    config = dataclasses.replace(config, rendezvous=endpoint)
    index, num_hosts = arguments.node_rank(options), len(plan.hosts)
    return Outcome(Agent(config, index, num_hosts, own).run())


def _run_job(options: Options, environ: dict[str, str], plan: Plan) -> int:
    return Job(options, environ, plan).run().exit_status


def _check(options: Options) -> int:
    if options.hosts is None and options.hostfile is None:
        return check.print_report(verbose=options.verbose)
    environ = {**os.environ, **options.settings()}
    config = Config.from_environ(environ)
    return HostsCheck(options, config).print_report()


def _fill_standard_streams() -> None:
    # Otherwise a pipe of ours would get the number of a closed stream.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
