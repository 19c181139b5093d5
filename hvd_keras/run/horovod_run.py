"""`horovod.run` under its own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.run.function import run_with

# Horovod's argument -> the option of hvdrun that means the same.
_OPTIONS = {
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "reset_limit": "--max-restarts",
    "slots": "--slots-per-host",
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-dir",
    "network_interfaces": "--interface",
}
_OLD_NAMES = {
    "np": "num_proc",
    "min_np": "min_num_proc",
    "max_np": "max_num_proc",
    "network_interface": "network_interfaces",
}
# They choose between ways that hvd_keras does not have.
_WITHOUT_MEANING = ("disable_cache", "use_gloo", "use_mpi", "mpi_args")


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    **options: Any,
) -> list[Any]:
    """Runs `func` on `num_proc` ranks: `hvd_keras.run` as Horovod calls it.

    Args:
        func: The function.
        args: Its arguments.
        kwargs: Its arguments by name.
        num_proc: Number of ranks.
        **options: The other arguments of `horovod.run`. Those that choose
            between Gloo and MPI are ignored.

    Returns:
        What `func` returned on each rank, in rank order.

    Raises:
        RankError: A rank failed.
        InvalidArgumentError: Horovod has no such argument.
    """
    given = {
        _OLD_NAMES.get(name, name): value
        for name, value in options.items()
        if value is not None and name not in _WITHOUT_MEANING
    }
    num_proc = given.pop("num_proc", num_proc)
    executable = given.pop("executable", None)
    arguments = ["--horovod-compat", "-np", str(num_proc)]
    if given.pop("verbose", None):
        arguments.append("--verbose")
    cooldown = given.pop("cooldown_range", None)
    if cooldown is not None:
        arguments += ["--blacklist-cooldown", *map(str, cooldown)]
    for name, value in given.items():
        if name not in _OPTIONS:
            raise InvalidArgumentError(
                "The arguments of `run` must be those of `horovod.run`. "
                f"Received: {name}={value!r}."
            )
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        arguments += [_OPTIONS[name], str(value)]
    is_elastic = "min_num_proc" in given
    return run_with(
        arguments,
        func,
        args,
        kwargs,
        num_ranks=None if is_elastic else num_proc,
        executable=executable,
    )
