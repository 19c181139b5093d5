"""The environment variables by which launchers describe a job.

Each launcher has a family of variables. If there are several, the first
complete one in `FAMILIES` counts.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping

from hvd_keras._job.bootstrap import processes

Environ = Mapping[str, str]

# Slurm numbers steps from here on if the user's srun did not start them: the
# batch script, the interactive shell of salloc, extern.
_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0


@dataclasses.dataclass(frozen=True)
class Family:
    """The variables by which one kind of launcher describes the job."""

    name: str  # for messages
    rank: str
    size: str
    local_rank: str
    local_size: str
    cross_rank: str = ""
    cross_size: str = ""
    # Together they name the job, and are equal in all of its processes.
    identity: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()  # beyond the four above
    # Whether the launcher was used; None: if any of the four is set.
    is_present: Callable[[Environ], bool] | None = None

    def required(self) -> tuple[str, ...]:
        """Returns the names that a complete family must have."""
        names = (self.rank, self.size, self.local_rank, self.local_size)
        return names + self.needed

    def found_in(self, environ: Environ) -> bool:
        """Whether this launcher seems to have made `environ`."""
        if self.is_present is not None:
            return self.is_present(environ)
        four = (self.rank, self.size, self.local_rank, self.local_size)
        return any(environ.get(name, "").strip() for name in four)


def _torch_is_present(environ: Environ) -> bool:
    # Others use names as plain as RANK too, so it takes two of them.
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    return sum(1 for name in names if environ.get(name, "").strip()) >= 2


def _slurm_is_present(environ: Environ) -> bool:
    # The shell of an allocation has SLURM_* too, but is not a job.
    step, rank = environ.get("SLURM_STEP_ID"), environ.get("SLURM_PROCID")
    if step is None or rank is None or not step.isdigit():
        return False
    if int(step) >= _FIRST_SPECIAL_SLURM_STEP:
        return False
    return environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


FAMILIES = (
    Family(
        "HVD_*",
        "HVD_RANK",
        "HVD_SIZE",
        "HVD_LOCAL_RANK",
        "HVD_LOCAL_SIZE",
        "HVD_CROSS_RANK",
        "HVD_CROSS_SIZE",
        identity=("HVD_RENDEZVOUS",),
    ),
    Family(
        "HOROVOD_*",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        identity=("HOROVOD_GLOO_RENDEZVOUS_PORT",),
    ),
    Family(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        identity=("MASTER_PORT", "TORCHELASTIC_RUN_ID",
                  "TORCHELASTIC_RESTART_COUNT"),
        needed=("MASTER_ADDR", "MASTER_PORT"),
        is_present=_torch_is_present,
    ),
    Family(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        identity=("PMIX_NAMESPACE",),
    ),
    Family(
        "MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
    ),
    Family(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "",  # known only if the step is on one host
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
        identity=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        needed=("SLURM_JOB_ID", "SLURM_STEP_NUM_NODES"),
        is_present=_slurm_is_present,
    ),
)  # fmt: skip


def num_declared_hosts(environ: Environ) -> tuple[int, str]:
    """Returns how many hosts the job has, as variables about hosts say.

    Some launchers describe the hosts of a job and not its ranks.

    Returns:
        The number and the variable that says so; (1, "") if none does.
    """
    for name in ("PET_NNODES", "JAX_NUM_PROCESSES"):
        text = environ.get(name, "").split(":")[0]
        if text.isdigit() and int(text) > 1:
            return int(text), name
    readers: tuple[tuple[str, Callable[[object], int]], ...] = (
        ("SM_HOSTS", lambda hosts: len(hosts)),  # type: ignore[arg-type]
        ("TF_CONFIG", _num_tf_config_tasks),
    )
    for name, count in readers:
        try:
            num_hosts = count(json.loads(environ.get(name, "") or "[]"))
        except (ValueError, TypeError, AttributeError):
            continue  # another program must complain about it
        if num_hosts > 1:
            return num_hosts, name
    return 1, ""


def _num_tf_config_tasks(value: object) -> int:
    cluster = value.get("cluster", {}) if isinstance(value, dict) else {}
    roles = ("chief", "master", "worker")
    return sum(len(cluster.get(role, [])) for role in roles)


def process_manager() -> str:
    """Returns a name of the MPICH process manager above this process, or "".

    Hydra gives its ranks no name of the job. But on one host they are all
    descendants of one proxy.
    """
    pid = os.getppid()
    while pid > 1:
        found = processes.find(pid)
        if found is None:
            return ""
        if found.name.startswith(("hydra_", "pmi_proxy")):
            return f"{pid}.{found.start_ticks}"
        pid = found.parent
    return ""
