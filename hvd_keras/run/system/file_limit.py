"""How many files hvdrun may open, and how many it needs."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from hvd_keras.exceptions import LaunchError


def raise_file_limit(num_ranks: int) -> None:
    """Lets this process open what so many ranks need."""
    # A rank needs two pipes, a pidfd, two log files and a connection.
    wanted = 8 * num_ranks + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def file_limit_named(num_ranks: int) -> Iterator[None]:
    """Names the limit in the error of who may open no more files.

    Raises:
        LaunchError: The limit was reached.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LaunchError(
            f"hvdrun must be able to open {20 + 6 * num_ranks} files for "
            f"{num_ranks} ranks on its host. Received: {hard} (`ulimit -n`)."
        ) from error
