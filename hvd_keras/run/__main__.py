"""The entry point of `hvdrun` and of `python -m hvd_keras.run`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from hvd_keras.config import Config, render_table
from hvd_keras.exceptions import HvdError
from hvd_keras.run import arguments, check, horovod_compat
from hvd_keras.run.supervisor import Supervisor


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
    if options.help_env:
        print(render_table())
        return 0
    if options.check:
        return check.print_report()
    try:
        arguments.validate(options)
        arguments.check_outer_launcher(os.environ)
        environ = {**os.environ, **options.settings()}
        if options.horovod_compat:
            environ["PYTHONPATH"] = horovod_compat.python_path(environ)
        # A bad setting is one message here, not one on every rank.
        Config.from_environ(environ)
        return Supervisor(options, environ).run()
    except KeyboardInterrupt:  # there are no ranks yet
        return 128 + signal.SIGINT
    except arguments.UsageError as error:
        print(f"hvdrun: {error}", file=sys.stderr)
        return error.exit_status
    except (HvdError, OSError) as error:
        print(f"hvdrun: {error}", file=sys.stderr)
        return 2


def _fill_standard_streams() -> None:
    # Otherwise a pipe of ours would get the number of a closed stream.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
