"""The environment variables that hvdrun gives a rank."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Iterable, Iterator, Mapping

from hvd_keras.run import cgroups, horovod_compat

# Who reads them: TensorFlow the first two, for its pools within and between
# ops; OpenMP, oneDNN's other builds and torch the third; JAX on the CPU the
# fourth. Threads that find no work spin on a core that another rank needs.
# Each number is the least that works: with one thread, a JAX callback that
# reads its argument waits for ever for its own thread.
_THREAD_VARIABLES = {
    "TF_NUM_INTRAOP_THREADS": 1,
    "TF_NUM_INTEROP_THREADS": 1,
    "OMP_NUM_THREADS": 1,
    "PJRT_NPROC": 2,
}


# Other hosts get the variables with these names, and those of `hvdrun -x`. The
# rest describes this host: its GPUs, its user's session, its job in a queue.
_SENT_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG")
_SENT_PREFIXES = (
    "HVD_", "HOROVOD_", "TF_", "KERAS_", "XLA_", "JAX_", "PJRT_", "TORCH_",
    "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "PYTHON", "LC_",
)  # fmt: skip
_NOT_SENT = ("HVD_HOSTNAME", "HVD_SECRET_FILE", "HVD_SECRET", "HVD_RENDEZVOUS",
             "TF_CONFIG")  # fmt: skip


def to_send(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns the variables for ranks on other hosts.

    Args:
        environ: The environment here.
        names: More variables that they get.
    """
    left_out = {*_NOT_SENT}
    if _is_address(environ.get("HVD_INTERFACE", "")):
        left_out.add("HVD_INTERFACE")  # that of this host
    chosen = {*_SENT_NAMES, *names}
    return {
        name: value
        for name, value in environ.items()
        if name in chosen
        or (name.startswith(_SENT_PREFIXES) and name not in left_out)
    }


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def num_cores() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, cgroups.cpu_limit())))


def defaults(environ: Mapping[str, str], num_ranks: int) -> dict[str, str]:
    """Settings for each rank's libraries that the user has not made."""
    num_threads = max(1, num_cores() // num_ranks)
    numbers = {
        name: max(num_threads, least)
        for name, least in _THREAD_VARIABLES.items()
    }
    # Makes TensorFlow keep the memory of its tensors on the CPU. Otherwise
    # glibc gives pieces above 32 MB back, and the kernel clears new pages for
    # each. TensorFlow would stop at 64 GB; the machine's memory is no limit.
    numbers["TF_CPU_ALLOCATOR_USE_BFC"] = 1
    numbers["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    )
    return {
        name: str(number)
        for name, number in numbers.items()
        if not environ.get(name)
    }


@dataclasses.dataclass(frozen=True)
class Place:
    """Which ranks of the job are on one host."""

    first_rank: int
    num_ranks: int
    size: int
    cross_rank: int = 0
    cross_size: int = 1

    def ranks(self) -> range:
        """Returns the ranks on this host."""
        return range(self.first_rank, self.first_rank + self.num_ranks)


def of_ranks(
    environ: Mapping[str, str],
    place: Place,
    rendezvous: str,
    secret: bytes,
    *,
    is_horovod: bool,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the ranks of this host, each with its whole environment.

    Args:
        environ: What all ranks get.
        place: Which ranks these are.
        rendezvous: The address of the job's server.
        secret: The secret of the job.
        is_horovod: Whether `import horovod` must work in the ranks.
    """
    base = {**environ, **defaults(environ, place.num_ranks)}
    for rank in place.ranks():
        found = of_rank(base, rank, place, rendezvous, secret)
        yield rank, horovod_compat.of_rank(found) if is_horovod else found


def of_rank(
    environ: Mapping[str, str],
    rank: int,
    place: Place,
    rendezvous: str,
    secret: bytes,
) -> dict[str, str]:
    """The whole environment of one rank."""
    return {
        **environ,
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),
        "HVD_RANK": str(rank),
        "HVD_SIZE": str(place.size),
        "HVD_LOCAL_RANK": str(rank - place.first_rank),
        "HVD_LOCAL_SIZE": str(place.num_ranks),
        "HVD_CROSS_RANK": str(place.cross_rank),
        "HVD_CROSS_SIZE": str(place.cross_size),
        "HVD_RENDEZVOUS": rendezvous,
        "HVD_SECRET": secret.hex(),
    }
