"""The environment variables by which launchers describe a job.

Each launcher has a family of variables. If there are several, the first
complete one in `FAMILIES` counts. Some launchers give a JSON document instead;
what it says gets names such as `TF_CONFIG:rank`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from hvd_keras._common import processes
from hvd_keras._rendezvous import addresses, slurm

Environ = Mapping[str, str]

MPICH = "MPICH or Intel MPI"

# Slurm numbers steps from here on if the user's srun did not start them: the
# batch script, the interactive shell of salloc, extern.
_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0


@dataclasses.dataclass(frozen=True)
class Family:
    """The variables by which one kind of launcher describes the job."""

    name: str  # for messages
    rank: str
    size: str
    local_rank: str = ""  # "": each host has one rank
    local_size: str = ""
    cross_rank: str = ""
    cross_size: str = ""
    # Together they name the job, and are equal in all of its processes.
    identity: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()  # beyond the four above
    # Host of rank 0, perhaps with a port for us; "" if they do not say.
    first_host: Callable[[Environ], str] = lambda environ: ""
    # Others may start several ranks on each host that it describes.
    is_of_hosts: bool = False
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
        return any(environ.get(name, "").strip() for name in four if name)


def _torch_is_present(environ: Environ) -> bool:
    # Others use names as plain as RANK too, so it takes two of them.
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    return sum(1 for name in names if environ.get(name, "").strip()) >= 2


def is_in_slurm_step(environ: Environ) -> bool:
    """Whether the user's srun has started this process.

    The shell of an allocation has SLURM_* too.
    """
    step, rank = environ.get("SLURM_STEP_ID"), environ.get("SLURM_PROCID")
    if step is None or rank is None or not step.isdigit():
        return False
    return int(step) < _FIRST_SPECIAL_SLURM_STEP


def _slurm_is_present(environ: Environ) -> bool:
    if not is_in_slurm_step(environ):
        return False
    return environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


def _slurm_first_host(environ: Environ) -> str:
    return (slurm.hosts(environ.get("SLURM_STEP_NODELIST", "")) or [""])[0]


def _coordinator_host(environ: Environ) -> str:
    address = environ.get("JAX_COORDINATOR_ADDRESS", "")
    # Its port is that of JAX.
    found = addresses.host_and_port(address)
    return found[0] if found else ""


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
        # torchrun itself may listen at MASTER_PORT.
        first_host=lambda environ: environ["MASTER_ADDR"],
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
        MPICH,
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
        "SLURM:local_size",
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
        identity=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        needed=("SLURM_JOB_ID", "SLURM_STEP_NUM_NODES"),
        first_host=_slurm_first_host,
        is_present=_slurm_is_present,
    ),
    Family(
        "LSF's jsrun",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_SIZE",
        identity=("LSB_JOBID", "JSM_JSRUN_STEPID"),
    ),
    Family(
        "JAX_*",
        "JAX_PROCESS_ID",
        "JAX_NUM_PROCESSES",
        identity=("JAX_COORDINATOR_ADDRESS",),
        needed=("JAX_COORDINATOR_ADDRESS",),
        first_host=_coordinator_host,
        is_of_hosts=True,
    ),
    Family(
        "SageMaker",
        "SM_HOSTS:rank",
        "SM_HOSTS:size",
        identity=("SM_HOSTS", "TRAINING_JOB_NAME"),
        first_host=lambda environ: environ["SM_HOSTS:first"],
        is_of_hosts=True,
    ),
    Family(
        "TF_CONFIG",
        "TF_CONFIG:rank",
        "TF_CONFIG:size",
        "TF_CONFIG:local_rank",
        "TF_CONFIG:local_size",
        "TF_CONFIG:cross_rank",
        "TF_CONFIG:cross_size",
        identity=("TF_CONFIG:tasks",),
        first_host=lambda environ: environ["TF_CONFIG:first"],
        is_of_hosts=True,
    ),
)  # fmt: skip


def with_documents(environ: Environ) -> dict[str, str]:
    """Returns `environ`, and what documents and lists in it say of the ranks.

    A document that makes no sense says nothing: another program must complain.
    """
    found = dict(environ)
    for read in (_read_slurm, _read_sagemaker, _read_tf_config):
        try:
            found.update(read(environ))
        except (ValueError, TypeError, AttributeError, LookupError):
            continue
    return found


def num_pet_hosts(environ: Environ) -> int:
    """Returns how many hosts Kubeflow's PET_* name; 1 if there are none.

    They describe hosts, each of which starts several ranks.
    """
    text = environ.get("PET_NNODES", "").split(":")[0]
    return int(text) if text.isdigit() else 1


def _read_slurm(environ: Environ) -> dict[str, str]:
    if environ["SLURM_STEP_NUM_NODES"] == "1":
        return {"SLURM:local_size": environ["SLURM_STEP_NUM_TASKS"]}
    numbers = slurm.tasks_per_host(environ["SLURM_STEP_TASKS_PER_NODE"])
    return {"SLURM:local_size": str(numbers[int(environ["SLURM_NODEID"])])}


def _read_sagemaker(environ: Environ) -> dict[str, str]:
    hosts = json.loads(environ["SM_HOSTS"])
    if not isinstance(hosts, list) or len(hosts) < 2:
        return {}
    # The same order on all hosts; rank 0 is the one that SageMaker calls first.
    hosts = sorted(str(host) for host in hosts)
    return {
        "SM_HOSTS:rank": str(hosts.index(environ["SM_CURRENT_HOST"])),
        "SM_HOSTS:size": str(len(hosts)),
        "SM_HOSTS:first": hosts[0],
    }


def _read_tf_config(environ: Environ) -> dict[str, str]:
    value: dict[str, Any] = json.loads(environ["TF_CONFIG"])
    roles = ("chief", "master", "worker")
    cluster, task = value["cluster"], value["task"]
    tasks = [
        (role, number, str(address))
        for role in roles
        for number, address in enumerate(cluster.get(role, []))
    ]
    if len(tasks) < 2:
        return {}
    if task["type"] == "evaluator":
        return {}
    found = {"TF_CONFIG:size": str(len(tasks))}
    places = [(role, number) for role, number, _ in tasks]
    if (task["type"], int(task["index"])) not in places:
        return found  # a parameter server is no rank
    rank = places.index((task["type"], int(task["index"])))
    hosts = [address.rpartition(":")[0] for _, _, address in tasks]
    distinct = list(dict.fromkeys(hosts))
    return found | {
        "TF_CONFIG:rank": str(rank),
        "TF_CONFIG:local_rank": str(hosts[:rank].count(hosts[rank])),
        "TF_CONFIG:local_size": str(hosts.count(hosts[rank])),
        "TF_CONFIG:cross_rank": str(distinct.index(hosts[rank])),
        "TF_CONFIG:cross_size": str(len(distinct)),
        "TF_CONFIG:first": tasks[0][2],
        "TF_CONFIG:tasks": " ".join(address for _, _, address in tasks),
    }


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
