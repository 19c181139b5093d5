"""The entry point of `hvdrun` and of `python -m hvd_keras.run`."""
# PYTHON_ARGCOMPLETE_OK: shells look for this.

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence

from hvd_keras._common.terminal import printable, tell
from hvd_keras.config import Config
from hvd_keras.exceptions import HvdError
from hvd_keras.run.cli import (
    arguments,
    check,
    dry_run,
    help_env,
    timeline,
    verify,
)
from hvd_keras.run.cli.arguments import CommandLine
from hvd_keras.run.cli.check_hosts import HostsCheck
from hvd_keras.run.hosts import planning
from hvd_keras.run.hosts.agent import Agent
from hvd_keras.run.hosts.host import Launch
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.job.gathering import StartInterruptedError
from hvd_keras.run.job.job import Job
from hvd_keras.run.job.outcome import Outcome
from hvd_keras.run.ranks import distribute
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.system.file_limit import file_limit_named
from hvd_keras.run.system.owned_folders import owned_folders
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
    argv = sys.argv[1:] if argv is None else argv
    return _outcome_of(lambda: _start(arguments.parse(argv))).exit_status


def run_job(spec: JobSpec) -> Outcome:
    """Runs a job, and says what cannot be done."""
    return _outcome_of(lambda: _run(spec))


def _outcome_of(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except KeyboardInterrupt:  # there are no ranks yet
        return Outcome(128 + signal.SIGINT, "interrupted")
    except StartInterruptedError as interrupt:
        return Outcome(interrupt.exit_status, "interrupted")
    except (UsageError, HvdError, OSError) as error:
        tell("hvdrun", error)
        status = error.exit_status if isinstance(error, UsageError) else 2
        return Outcome(status, str(error))


def _start(line: CommandLine) -> Outcome:
    """Does what the command line asks for."""
    if line.shows_settings:
        print(help_env.render(min(shutil.get_terminal_size().columns, 100)))
        return Outcome(0)
    if line.config is not None:
        print(line.config)
        return Outcome(0)
    if line.checks:
        found = Outcome(_check(line.spec))
        if not line.trains:
            return found
        # Where TensorFlow is missing, Keras may train with another backend.
        trained = _run(check.test_job(line.spec))
        return trained if trained.exit_status else found
    return _run(line.spec, line)


def _run(spec: JobSpec, line: CommandLine | None = None) -> Outcome:
    environ = {**os.environ, **spec.settings}
    spec = planning.filled_from_environ(spec, environ)
    plan = planning.plan(spec, environ)
    if plan.way != "hosts":
        planning.check_outer_launcher(os.environ)
    environ.update(spec.given_variables())
    own = sum(host.slots or 0 for host in plan.hosts if host.is_local)
    with file_limit_named(own):
        return _run_planned(spec, environ, plan, line)


def _run_planned(
    spec: JobSpec, environ: dict[str, str], plan: Plan, line: CommandLine | None
) -> Outcome:
    if environ.get("HVD_DISTRIBUTE"):
        distribute.prepare(spec, environ)
    # A bad setting is one message here, not one on every rank.
    config = Config.from_environ(environ)
    if line is not None and line.is_dry_run:
        print(printable(dry_run.describe(spec, plan)))
        return Outcome(0)
    if line is not None and line.verify_steps is not None:
        steps, is_json = line.verify_steps, line.is_json
        status = verify.run(
            spec, environ, plan, _run_one, num_steps=steps, is_json=is_json
        )
        return Outcome(status)
    if plan.way != "hosts" or planning.node_rank(spec) == 0:
        kept = spec.output
        with (
            owned_folders([kept.folder, kept.timeline]),
            timeline.recorded(kept, environ, plan),
        ):
            return Job(spec, environ, plan).run()
    own = Launch(spec.command, environ, b"", spec.is_horovod)
    endpoint = planning.endpoint(spec)
    config = dataclasses.replace(config, rendezvous=endpoint)
    index, num_hosts = planning.node_rank(spec), len(plan.hosts)
    agent = Agent(config, index, num_hosts, own, spec.num_ranks or 1)
    return Outcome(agent.run())


def _run_one(spec: JobSpec, environ: dict[str, str], plan: Plan) -> int:
    return Job(spec, environ, plan).run().exit_status


def _check(spec: JobSpec) -> int:
    if spec.hosts is None and spec.hostfile is None:
        return check.print_report(verbose=spec.output.is_verbose)
    config = Config.from_environ({**os.environ, **spec.settings})
    return HostsCheck(spec, config).print_report()


def _fill_standard_streams() -> None:
    # Otherwise a pipe of ours would get the number of a closed stream.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
