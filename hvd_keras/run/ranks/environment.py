"""The environment variables that hvdrun gives a rank."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hvd_keras._common import gpus, horovod_site
from hvd_keras.config import Config
from hvd_keras.run.system import cgroups

_GPUS_PER_RANK = "HVD_GPUS_PER_RANK"

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
_SENT_PREFIXES: tuple[str, ...] = (
    "HVD_", "HOROVOD_", "TF_", "KERAS_", "XLA_", "JAX_", "PJRT_", "TORCH_",
    "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "PYTHON", "LC_",
)  # fmt: skip
_SETTINGS_PREFIXES: tuple[str, ...] = ("HVD_", "HOROVOD_")
_NOT_SENT = ("HVD_HOSTNAME", "HVD_SECRET_FILE", "HVD_SECRET", "HVD_RENDEZVOUS",
             "TF_CONFIG")  # fmt: skip


def to_send(
    environ: Mapping[str, str],
    names: Iterable[str],
    *,
    settings_alone: bool = False,
) -> dict[str, str]:
    """Returns the variables for ranks on other hosts.

    Args:
        environ: The environment here.
        names: More variables that they get.
        settings_alone: Whether they get only these and the settings of
            hvd_keras, since those hosts have environments of their own.
    """
    left_out = {*_NOT_SENT}
    if _is_address(environ.get("HVD_INTERFACE", "")):
        left_out.add("HVD_INTERFACE")  # that of this host
    chosen = {*names} if settings_alone else {*_SENT_NAMES, *names}
    prefixes = _SETTINGS_PREFIXES if settings_alone else _SENT_PREFIXES
    return {
        name: value
        for name, value in environ.items()
        if name in chosen
        or (name.startswith(prefixes) and name not in left_out)
    }


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# Has what Python imports before a script.
SITE = str(Path(__file__).parents[2] / "distribution" / "_site")


def num_cores() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, cgroups.cpu_limit())))


def defaults(
    environ: Mapping[str, str], num_ranks: int, *, has_more_hosts: bool = False
) -> dict[str, str]:
    """Settings for each rank's libraries that the user has not made.

    Args:
        environ: The user's settings.
        num_ranks: Ranks on this host.
        has_more_hosts: Whether the job has ranks on other hosts, too.
    """
    num_threads = max(1, num_cores() // num_ranks)
    numbers = {
        name: max(num_threads, least)
        for name, least in _THREAD_VARIABLES.items()
    }
    if has_more_hosts:
        # With one thread, TensorFlow begins collectives when it has computed
        # all gradients. So none would travel meanwhile.
        inter_op = "TF_NUM_INTEROP_THREADS"
        numbers[inter_op] = max(numbers[inter_op], 2)
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
    """Which ranks of the job are on one host.

    In an elastic job hvdrun counts members instead of ranks.
    """

    first_rank: int
    num_ranks: int  # in an elastic job: the slots of this host
    size: int
    cross_rank: int = 0
    cross_size: int = 1
    is_elastic: bool = False
    members: Sequence[int] = ()  # if it is elastic: all that were started here
    slots: Sequence[int] = ()  # of each member, from 0 on
    # Of those that begin while it runs: number, likely rank, size, local rank.
    newcomers: Sequence[Sequence[int]] = ()

    def ranks(self) -> Sequence[int]:
        """Returns the ranks on this host."""
        if self.is_elastic:
            return self.members
        return range(self.first_rank, self.first_rank + self.num_ranks)

    def slot_of(self, rank: int) -> int:
        """Returns which of the slots of this host a rank or member has."""
        if self.is_elastic:
            return self.slots[list(self.members).index(rank)]
        return rank - self.first_rank


def of_ranks(
    environ: Mapping[str, str],
    place: Place,
    rendezvous: str,
    secret: bytes,
    *,
    is_horovod: bool,
    ranks: Sequence[int] | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the ranks of this host, each with its whole environment.

    Args:
        environ: What all ranks get.
        place: Which ranks these are.
        rendezvous: The address of the job's server.
        secret: The secret of the job.
        is_horovod: Whether `import horovod` must work in the ranks.
        ranks: Those of them that are wanted; None: all.
    """
    chosen = defaults(
        environ, place.num_ranks, has_more_hosts=place.cross_size > 1
    )
    base = {**environ, **chosen}
    shares = shares_of_gpus(environ, place.num_ranks, is_horovod=is_horovod)
    for rank in place.ranks() if ranks is None else ranks:
        share = shares[place.slot_of(rank)]
        found = of_rank(base, rank, place, rendezvous, secret)
        if share is not None:
            found[gpus.VARIABLE] = ",".join(share)
        if is_horovod:  # its scripts choose a GPU by local rank
            found.setdefault(_GPUS_PER_RANK, "0")
        yield rank, horovod_site.of_rank(found) if is_horovod else found


def shares_of_gpus(
    environ: Mapping[str, str], num_ranks: int, *, is_horovod: bool
) -> list[list[str] | None]:
    """Returns what each rank of this host gets of its GPUs.

    An element is a list of entries of CUDA_VISIBLE_DEVICES, or None for a rank
    that sees all.

    Args:
        environ: What all ranks get.
        num_ranks: The ranks of this host.
        is_horovod: Whether `import horovod` must work in the ranks.
    """
    if is_horovod and not environ.get(_GPUS_PER_RANK):
        return [None] * num_ranks
    config = Config.from_environ(environ)
    entries = gpus.visible(environ, config.nvml_library)
    shares = [
        gpus.share_of(
            entries,
            index,
            num_ranks,
            config.gpus_per_rank,
            may_share=config.gpu_share,
        )
        for index in range(num_ranks)
    ]
    return [None if share == entries else share for share in shares]


def described(
    environ: Mapping[str, str],
    num_ranks: int,
    *,
    is_horovod: bool,
    is_verbose: bool,
) -> list[str]:
    """Returns lines on the ranks of a job that has this host alone."""
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    settings = defaults(environ, num_ranks)
    chosen = [f"{name}={one}" for name, one in settings.items()]
    if not is_verbose and len(chosen) > 2:
        more_settings = f"{len(chosen) - 1} more settings (-v shows them)"
        chosen = [f"{chosen[0]} and {more_settings}"]
    what = ", ".join(chosen) or "threads and memory as set in the environment"
    cores = num_cores()
    more = " (more ranks than cores: they take turns)" * (num_ranks > cores)
    where = f"{cores} core{'s' * (cores > 1)}{more}"
    gpus_text = _described_gpus(environ, num_ranks, is_horovod=is_horovod)
    first = f"{ranks} on {where}, each with {what}"
    return [first, gpus_text] if gpus_text else [first]


def _described_gpus(
    environ: Mapping[str, str], num_ranks: int, *, is_horovod: bool
) -> str:
    """Returns a line on the GPUs of this host; "": nothing is to be said."""
    shares = shares_of_gpus(environ, num_ranks, is_horovod=is_horovod)
    texts = ["" if share is None else ",".join(share) for share in shares]
    if any(texts):
        return (
            f"each rank sees its own GPU: {' '.join(texts)} "
            "(HVD_GPUS_PER_RANK=0: all)"
        )
    config = Config.from_environ(environ)
    count = len(gpus.visible(environ, config.nvml_library))
    if not 0 < count < num_ranks or is_horovod:
        return ""
    which = "the only GPU" if count == 1 else f"all {count} GPUs"
    if config.gpu_share:
        return f"{num_ranks} ranks share {which}"
    return (
        f"{num_ranks} ranks see {which}: there are too few. "
        "HVD_GPU_SHARE=1 lets ranks use one together"
    )


_LIKELY = ("HVD_RANK", "HVD_SIZE", "HVD_LOCAL_RANK")


def of_rank(
    environ: Mapping[str, str],
    rank: int,
    place: Place,
    rendezvous: str,
    secret: bytes,
) -> dict[str, str]:
    """The whole environment of one rank."""
    own = {"HVD_ELASTIC": "1", "HVD_MEMBER": str(rank)}
    for number, *likely in place.newcomers:
        if number == rank:
            own["HVD_NEWCOMER"] = "1"
            for name, one in zip(_LIKELY, likely, strict=True):
                own[name] = str(one)
    if not place.is_elastic:
        own = {
            "HVD_RANK": str(rank),
            "HVD_SIZE": str(place.size),
            "HVD_LOCAL_RANK": str(rank - place.first_rank),
            "HVD_LOCAL_SIZE": str(place.num_ranks),
            "HVD_CROSS_RANK": str(place.cross_rank),
            "HVD_CROSS_SIZE": str(place.cross_size),
        }
    return {
        **environ,
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),
        **own,
        "HVD_RENDEZVOUS": rendezvous,
        "HVD_SECRET": secret.hex(),
    }
