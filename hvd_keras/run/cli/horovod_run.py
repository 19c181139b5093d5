"""`horovod.run` under its own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras._common.ignored import ignoring
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.run.function import run_spec
from hvd_keras.run.spec import JobSpec, Output, Reach, elastic, settings

# Horovod's argument -> that of `spec.elastic`.
_ELASTIC = {
    "max_num_proc": "max_ranks",
    "reset_limit": "max_restarts",
    "slots": "slots_per_host",
    "host_discovery_script": "host_discovery_script",
    "cooldown_range": "blacklist_cooldown",
}
_OTHERS = {
    *("min_num_proc", "hosts", "hostfile", "start_timeout", "ssh_port"),
    *("ssh_identity_file", "output_filename", "network_interfaces"),
}
_OLD_NAMES = {
    "np": "num_proc",
    "min_np": "min_num_proc",
    "max_np": "max_num_proc",
    "network_interface": "network_interfaces",
}


# They choose between ways that hvd_keras does not have.
@ignoring("horovod.run", "disable_cache use_gloo use_mpi mpi_args")
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
            between Gloo and MPI are ignored, and say so once.

    Returns:
        What `func` returned on each rank, in rank order.

    Raises:
        RankError: A rank failed.
        InvalidArgumentError: Horovod has no such argument.
    """
    given = {
        _OLD_NAMES.get(name, name): value
        for name, value in options.items()
        if value is not None
    }
    num_proc = given.pop("num_proc", num_proc)
    executable = given.pop("executable", None)
    is_verbose = bool(given.pop("verbose", False))
    for name in given.keys() - _ELASTIC.keys() - _OTHERS:
        raise InvalidArgumentError(
            "The arguments of `run` must be those of `horovod.run`. "
            f"Received: {name}={given[name]!r}."
        )
    interfaces = given.get("network_interfaces")
    if isinstance(interfaces, (list, tuple)):
        interfaces = ",".join(map(str, interfaces))
    of_elastic = {_ELASTIC[n]: given[n] for n in _ELASTIC if n in given}
    spec = JobSpec(
        (),
        num_proc,
        given.get("hosts"),
        given.get("hostfile"),
        reach=Reach(given.get("ssh_port"), given.get("ssh_identity_file")),
        elastic=elastic(given.get("min_num_proc"), **of_elastic),
        output=Output(given.get("output_filename"), is_verbose=is_verbose),
        is_horovod=True,
        settings=settings(
            HVD_START_TIMEOUT=given.get("start_timeout"),
            HVD_INTERFACE=interfaces,
        ),
    )
    return run_spec(spec, func, args, kwargs, executable=executable)
