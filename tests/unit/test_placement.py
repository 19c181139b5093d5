"""Which ranks go to which host."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_keras._rendezvous import interfaces
from hvd_keras.run.cli import arguments
from hvd_keras.run.hosts import placement, planning
from hvd_keras.run.hosts.placement import Plan, PlannedHost
from hvd_keras.run.ranks import environment
from hvd_keras.run.usage import UsageError


def _slots(plan: Plan) -> dict[str, int | None]:
    return {host.name: host.slots for host in plan.hosts}


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=4\nb slots=2\n", [("a", 4), ("b", 2)]),
        ("a:4\nb\n", [("a", 4), ("b", None)]),
        ("# all\n\na slots = 4 max_slots=8 # big\n", [("a", 4)]),
        ("a max-slots=8 slots=4", [("a", 4)]),
        ("10.0.0.1:2\n[fe80::1]:3", [("10.0.0.1", 2), ("fe80::1", 3)]),
        ("a slots=1\na slots=1", [("a", 1), ("a", 1)]),
    ],
)
def test_hostfiles_of_all_launchers_are_read(
    hostfile: Path, text: str, expected: list[tuple[str, int | None]]
) -> None:
    hostfile.write_text(text)
    assert placement.read_hostfile(str(hostfile)) == expected


@pytest.mark.parametrize("text", ["", "# none\n", "a b c\n", "a:x", "a slots"])
def test_malformed_hostfile_is_an_error(hostfile: Path, text: str) -> None:
    hostfile.write_text(text)
    with pytest.raises(UsageError, match="`--hostfile`"):
        placement.read_hostfile(str(hostfile))


def test_a_line_that_is_malformed_is_named(hostfile: Path) -> None:
    hostfile.write_text("a slots=4\nb c d\n")
    with pytest.raises(UsageError, match=r"'b c d' in line 2 of"):
        placement.read_hostfile(str(hostfile))


def test_a_hostfile_is_no_larger_than_a_mebibyte(hostfile: Path) -> None:
    text = "a slots=4 #".ljust(1 << 20, "x")
    hostfile.write_text(text)
    assert placement.read_hostfile(str(hostfile)) == [("a", 4)]
    hostfile.write_text(text + "x")
    with pytest.raises(UsageError, match="more than 1,048,576 characters"):
        placement.read_hostfile(str(hostfile))


def test_a_host_has_a_limited_number_of_slots() -> None:
    assert placement.parse_hosts("a:65536") == [("a", 65536)]
    for slots in ("65537", "9" * 5000):
        with pytest.raises(UsageError, match="65536 slots at most"):
            placement.parse_hosts(f"a:{slots}")


@pytest.mark.parametrize("text", ["", "a:", "a:b", "a,,b", "a:1:2", "a b"])
def test_malformed_list_of_hosts_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="a:4,b:4"):
        placement.parse_hosts(text)


def test_hosts_that_come_twice_are_one() -> None:
    hosts = placement.parse_hosts("192.0.2.1:2,localhost:1,192.0.2.1,127.0.0.1")
    plan = placement.of_hosts(hosts, None)
    assert [host.slots for host in plan.hosts] == [3, 2]
    assert [host.is_local for host in plan.hosts] == [False, True]
    assert plan.way == "ssh"


def test_this_host_is_called_by_its_name() -> None:
    here = interfaces.host_name()
    for name in ("localhost", "127.0.0.1"):
        plan = placement.of_hosts([(name, 2), ("192.0.2.1", 1)], None)
        assert _slots(plan) == {here: 2, "192.0.2.1": 1}
    plan = placement.of_num_hosts(3, 2)
    assert _slots(plan) == {here: 2, "host 1": None, "host 2": None}
    assert [host.is_local for host in plan.hosts] == [True, False, False]


def test_hosts_without_slots_are_left_out() -> None:
    hosts = [("192.0.2.1", 0), ("192.0.2.2", 1), ("192.0.2.3", None)]
    plan = placement.of_hosts(hosts, 2)
    assert _slots(plan) == {"192.0.2.2": 1, "192.0.2.3": 1}
    assert plan.num_ranks == 2


@pytest.mark.parametrize(
    ("ranks", "text"), [(range(3, 4), "rank 3"), (range(2, 6), "ranks 2-5")]
)
def test_ranks_in_messages(ranks: range, text: str) -> None:
    assert placement.span(ranks) == text


@pytest.mark.parametrize("num_ranks", [3, 4])
def test_this_host_alone_needs_no_agent(num_ranks: int) -> None:
    plan = placement.of_hosts([("localhost", 4)], num_ranks)
    assert plan == placement.of_this_host(num_ranks)
    assert plan.is_of_one_host


def test_slots_of_this_host_count() -> None:
    plan = placement.of_hosts([("localhost", 2), ("127.0.0.1", 1)], 4)
    with pytest.raises(UsageError, match=r"-np 4 for .*:3"):
        plan.without_idle_hosts()
    assert placement.of_hosts([("localhost", None)], 4).num_ranks == 4


def _plan(num_ranks: int | None, *slots: int) -> Plan:
    hosts = [PlannedHost(f"h{i}", number) for i, number in enumerate(slots)]
    return Plan("ssh", tuple(hosts), num_ranks)


def test_ranks_fill_host_after_host() -> None:
    places = _plan(5, 3, 3, 3).places([3, 3, 3])
    assert [place.ranks() for place in places] == [range(3), range(3, 5)]
    assert {place.cross_size for place in places} == {2}
    assert [place.cross_rank for place in places] == [0, 1]
    assert len(_plan(5, 3, 3, 3).without_idle_hosts().hosts) == 2
    assert _plan(None, 1, 2).places([1, 2])[1].ranks() == range(1, 3)


def test_more_ranks_than_slots_are_an_error() -> None:
    with pytest.raises(UsageError, match="-np 5 for h0:2, h1:2"):
        _plan(5, 2, 2).without_idle_hosts()


# ---- Slurm ----

_ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "3,1",
    "SLURM_NTASKS": "4",
}


def test_an_allocation_of_slurm_says_which_hosts() -> None:
    plan = placement.of_slurm(_ALLOCATION, None)
    assert plan is not None
    assert (plan.way, plan.num_ranks) == ("slurm", 4)
    assert _slots(plan) == {"n1": 3, "n2": 1}


def test_more_ranks_than_the_allocation_counts_are_dealt_evenly() -> None:
    plan = placement.of_slurm(_ALLOCATION, 7)
    assert plan is not None
    assert _slots(plan) == {"n1": 4, "n2": 4}


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_NODELIST": "n1"},
        {"SLURM_JOB_ID": ""},
        {"SLURM_NTASKS": ""},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
    ],
)
def test_other_allocations_are_this_host(change: dict[str, str]) -> None:
    assert placement.of_slurm({**_ALLOCATION, **change}, None) is None


# ---- Kubernetes ----


def test_the_command_line_wins_over_kubernetes() -> None:
    pet = {
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "a",
        "PET_MASTER_PORT": "7",
    }
    spec = arguments.parse(["true"]).spec
    spec = planning.filled_from_environ(spec, pet)
    assert planning.num_hosts(spec) == 2
    assert planning.node_rank(spec) == 1
    assert planning.endpoint(spec) == "tcp:a:7"
    assert spec.num_ranks == 4
    line = "--node-rank 0 -np 3 --rdzv-endpoint [::1]:9 true"
    spec = arguments.parse(line.split()).spec
    spec = planning.filled_from_environ(spec, pet)
    assert planning.node_rank(spec) == 0
    assert planning.endpoint(spec) == "tcp:[::1]:9"
    assert spec.num_ranks == 3


@pytest.mark.parametrize("text", ["0", "x", "2:3"])
def test_number_of_hosts_must_be_one_number(text: str) -> None:
    with pytest.raises(UsageError, match="`--nnodes`"):
        planning.num_hosts(arguments.parse(["--nnodes", text, "true"]).spec)


# ---- Environment ----


def test_other_hosts_get_the_variables_that_matter() -> None:
    environ = {
        "PATH": "/bin",
        "TF_X": "1",
        "MY": "2",
        "OTHER": "3",
        "HVD_SECRET": "s",
        "HVD_HOSTNAME": "here",
        "HVD_INTERFACE": "eth0",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    sent = environment.to_send(environ, ["MY", "MISSING"])
    expected = {"PATH": "/bin", "TF_X": "1", "MY": "2", "HVD_INTERFACE": "eth0"}
    assert sent == expected
    assert environment.to_send({"HVD_INTERFACE": "10.0.0.1"}, []) == {}
    sent = environment.to_send(environ, ["MY"], settings_alone=True)
    assert sent == {"MY": "2", "HVD_INTERFACE": "eth0"}
