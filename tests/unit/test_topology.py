from __future__ import annotations

import json

import pytest

from hvd_keras._rendezvous import slurm
from hvd_keras._rendezvous.topology import Topology, detect
from hvd_keras.exceptions import LaunchError

HVD = {
    "HVD_RANK": "1",
    "HVD_SIZE": "2",
    "HVD_LOCAL_RANK": "1",
    "HVD_LOCAL_SIZE": "2",
    "HVD_CROSS_RANK": "0",
    "HVD_CROSS_SIZE": "1",
    "HVD_RENDEZVOUS": "unix:/x",
}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
}
TORCH = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-7@1",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}
FAMILIES = {
    "HVD_*": HVD,
    "HOROVOD_*": HOROVOD,
    "torchrun": TORCH,
    "Open MPI": OPEN_MPI,
    "MPICH or Intel MPI": MPICH,
    "Slurm": SLURM,
}


def _error(environ: dict[str, str]) -> str:
    with pytest.raises(LaunchError) as raised:
        detect(environ)
    return str(raised.value)


def test_no_launcher_is_one_rank() -> None:
    assert detect({"PATH": "/bin"}) == Topology()
    assert Topology().size == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_each_launcher_is_understood(name: str) -> None:
    found = detect(FAMILIES[name])
    assert (found.rank, found.size) == (1, 2)
    assert (found.local_rank, found.local_size) == (1, 2)
    assert (found.cross_rank, found.cross_size) == (0, 1)
    assert found.launcher == ("hvdrun" if name == "HVD_*" else name)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("HVD_*", "HVD_SIZE"),
        ("HOROVOD_*", "HOROVOD_LOCAL_RANK"),
        ("torchrun", "WORLD_SIZE"),
        ("torchrun", "LOCAL_RANK"),
        ("torchrun", "MASTER_ADDR"),
        ("Open MPI", "OMPI_COMM_WORLD_SIZE"),
        ("MPICH or Intel MPI", "MPI_LOCALNRANKS"),
        ("Slurm", "SLURM_LOCALID"),
    ],
)
def test_a_partial_set_is_an_error(name: str, missing: str) -> None:
    environ = dict(FAMILIES[name])
    del environ[missing]
    message = _error(environ)
    assert name in message
    assert f"missing: {missing}" in message


def test_world_size_that_counts_nodes_is_refused() -> None:
    # Alibaba PAI and PyTorchJob number nodes, not processes.
    environ = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    assert "LOCAL_RANK" in _error(environ)
    assert detect({**environ, "WORLD_SIZE": "1"}) == Topology()


def test_a_lone_rank_variable_is_ignored() -> None:
    assert detect({"RANK": "3"}).size == 1
    assert detect({"MASTER_ADDR": "a", "MASTER_PORT": "1"}).size == 1


def test_variables_of_two_launchers_may_agree() -> None:
    found = detect({**TORCH, **OPEN_MPI})
    assert found.launcher == "torchrun"


def test_variables_of_two_launchers_that_disagree_are_an_error() -> None:
    message = _error({**TORCH, **OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"})
    assert "torchrun says RANK=1 WORLD_SIZE=2" in message
    assert "Open MPI says OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4" in (
        message
    )


def test_a_partial_set_that_agrees_is_ignored() -> None:
    # srun --mpi=pmi2 gives two of MPICH's four.
    assert detect({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}).rank == 1
    assert "must agree" in _error({**SLURM, "PMI_RANK": "0", "PMI_SIZE": "2"})


def test_hvdrun_is_final_within_another_job() -> None:
    assert detect({**OPEN_MPI, **HVD, "OMPI_COMM_WORLD_SIZE": "9"}).size == 2


def test_the_shell_of_a_slurm_allocation_is_no_rank() -> None:
    shell = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "64"}
    assert detect(shell).size == 1
    assert detect({**shell, "SLURM_PROCID": "0"}).size == 1
    interactive = {**SLURM, "SLURM_STEP_ID": "4294967290"}
    assert detect(interactive).size == 1
    assert detect({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}).size == 1


def _places(topology: Topology) -> tuple[int, ...]:
    """Rank and size of the job, of the host, and of the hosts."""
    return (
        *(topology.rank, topology.size),
        *(topology.local_rank, topology.local_size),
        *(topology.cross_rank, topology.cross_size),
    )


_TF_CONFIG = {
    "cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]},
    "task": {"type": "worker", "index": 1},
}


@pytest.mark.parametrize(
    ("environ", "places", "host"),
    [
        (
            {**HVD, "HVD_LOCAL_SIZE": "1", "HVD_LOCAL_RANK": "0",
             "HVD_CROSS_RANK": "1", "HVD_CROSS_SIZE": "2"},
            (1, 2, 0, 1, 1, 2),
            "",
        ),
        (
            {**TORCH, "RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "1",
             "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "a"},
            (3, 4, 1, 2, 1, 2),
            "a",
        ),
        ({**TORCH, "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2",
          "MASTER_ADDR": "fe80::1"}, (1, 4, 1, 2, 0, 2), "[fe80::1]"),
        # Host by host, and in turn.
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3",
          "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4, 1, 2, 1, 2), ""),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2",
          "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4, 1, 2, 0, 2), ""),
        ({**MPICH, "PMI_SIZE": "4"}, (1, 4, 1, 2, 0, 2), ""),
        (
            {**SLURM, "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4",
             "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1",
             "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "3,1",
             "SLURM_STEP_NODELIST": "n[07-08]"},
            (3, 4, 0, 1, 1, 2),
            "n07",
        ),
        (
            {"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4",
             "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"},
            (3, 4, 1, 2, 1, 2),
            "",
        ),
        (
            {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2",
             "JAX_COORDINATOR_ADDRESS": "a:1234"},
            (1, 2, 0, 1, 1, 2),
            "a",
        ),
        (
            {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"},
            (1, 2, 0, 1, 1, 2),
            "algo-1",
        ),
        ({"TF_CONFIG": json.dumps(_TF_CONFIG)}, (2, 3, 0, 1, 1, 2), "a:1"),
    ],
)  # fmt: skip
def test_several_hosts_are_understood(
    environ: dict[str, str], places: tuple[int, ...], host: str
) -> None:
    found = detect(environ)
    assert _places(found) == places
    if not host:
        assert found.rendezvous == ""
    elif host.endswith(":1"):
        assert found.rendezvous == f"tcp:{host}"
    else:
        assert found.rendezvous.startswith(f"tcp:{host}:2")


def test_the_port_of_rank_0_comes_from_the_name_of_the_job() -> None:
    two = {**TORCH, "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    other_rank = {**two, "RANK": "3", "GROUP_RANK": "1"}
    assert detect(two).rendezvous == detect(other_rank).rendezvous
    other_job = {**two, "MASTER_PORT": "29501"}
    assert detect(two).rendezvous != detect(other_job).rendezvous


def test_what_describes_hosts_may_count_otherwise_than_ranks() -> None:
    hosts = {"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "a"}
    assert detect({**OPEN_MPI, **hosts}).launcher == "Open MPI"
    tf_config = {"TF_CONFIG": json.dumps(_TF_CONFIG)}
    assert detect({**OPEN_MPI, **tf_config}).size == 2
    assert "must agree" in _error({**hosts, **tf_config})


def test_a_parameter_server_is_no_rank_and_an_evaluator_is_alone() -> None:
    def of(role: str) -> dict[str, str]:
        task = {"type": role, "index": 0}
        return {"TF_CONFIG": json.dumps({**_TF_CONFIG, "task": task})}

    assert detect(of("evaluator")).size == 1
    assert "missing: TF_CONFIG:rank" in _error(of("ps"))


def test_hosts_of_kubeflow_need_hvdrun() -> None:
    assert "hvdrun python" in _error({"PET_NNODES": "2"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-2,08-10],m", ["n1", "n2", "n08", "n09", "n10", "m"]),
        ("r[1-2]n[1,3]x", ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]),
        ("", []),
    ],
)
def test_lists_of_slurms_hosts_are_read(text: str, names: list[str]) -> None:
    assert slurm.hosts(text) == names


def test_numbers_of_slurms_tasks_are_read() -> None:
    assert slurm.tasks_per_host("2(x3),1") == [2, 2, 2, 1]
    assert slurm.tasks_per_host("x") == slurm.tasks_per_host("") == []


@pytest.mark.parametrize(
    "environ",
    [
        {"TF_CONFIG": "no json"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}})},
        {"SM_HOSTS": '["algo-1"]'},
        {"PET_NNODES": "1"},
    ],
)
def test_one_host_or_nonsense_is_one_rank(environ: dict[str, str]) -> None:
    assert detect(environ).size == 1


@pytest.mark.parametrize(
    "change",
    [
        {"HVD_RANK": "2"},
        {"HVD_LOCAL_RANK": "2"},
        {"HVD_LOCAL_SIZE": "3"},
        {"HVD_RANK": "one"},
        {"HVD_SIZE": "-2"},
    ],
)
def test_impossible_numbers_are_an_error(change: dict[str, str]) -> None:
    (name,) = change
    assert name in _error({**HVD, **change})


def test_the_name_of_the_job_tells_jobs_apart() -> None:
    def name(environ: dict[str, str]) -> str:
        return detect(environ).job_identity

    assert name(TORCH) == name({**TORCH, "RANK": "0", "LOCAL_RANK": "0"})
    assert name(TORCH) != name({**TORCH, "MASTER_PORT": "29501"})
    assert name(TORCH) != name({**TORCH, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert name(SLURM) != name({**SLURM, "SLURM_STEP_ID": "1"})
    assert name(OPEN_MPI) != name(SLURM)
