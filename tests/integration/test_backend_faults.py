"""`fit` raises when a rank dies, on JAX and torch, without TensorFlow."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import jobs
import pytest

_RANK = pathlib.Path(__file__).with_name("backend_fault_rank.py")


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_raises_peer_lost_and_the_model_lives(
    backend: str, tmp_path: pathlib.Path
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    path = tmp_path / "saved.weights.h5"
    command = [sys.executable, str(_RANK), str(path)]
    environ = jobs.clean_environ(KERAS_BACKEND=backend)
    job = jobs.run(*("-np", "2", "--", *command), seconds=120, environ=environ)
    lines = dict(line.split(": ", 1) for line in job.lines(0))
    assert "rank 1 (pid " in lines["error"], job.stderr
    assert lines["steps"] == "3"
    assert lines["finite"] == "True"
    assert lines["tensorflow"] == "False"
    assert path.exists()


_TORCH_LOOP = """
    import os, signal, sys
    import torch
    import hvd_keras.torch as hvd
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    waiting = hvd.allreduce_async(torch.ones(2), name="waiting") {late}
    x = torch.ones(4, 3)
    try:
        for step in range(9):
            if hvd.rank() == 1 and step == {step}:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    except hvd.elastic.HorovodInternalError as error:
        print(type(error).__name__, "rank 1 (pid " in str(error))
    if waiting is not None:
        try:
            hvd.synchronize(waiting)
        except hvd.elastic.HorovodInternalError as error:
            print(type(error).__name__, hvd.poll(waiting))
    for call in (hvd.barrier, lambda: hvd.broadcast_object(1)):
        try:
            call()
        except hvd.elastic.HorovodInternalError as error:
            print(type(error).__name__)
    print(torch.isfinite(model.weight).all().item())
    print(len(optimizer.state_dict()["param_groups"]))
    print({{"keras", "tensorflow"}} & set(sys.modules))
"""


@pytest.mark.parametrize("step", [0, 5])  # before they agree, and afterwards
def test_a_loop_of_torch_hears_of_a_dead_rank(step: int) -> None:
    code = _TORCH_LOOP.format(step=step, late="if hvd.rank() == 0 else None")
    job = jobs.run_python(2, code, seconds=120)
    assert job.lines(0) == [
        "PeerLostError True",
        "PeerLostError True",
        *["PeerLostError"] * 2,
        *("True", "1", "set()"),
    ], job.stderr
