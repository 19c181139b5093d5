"""Collectives and optimizers inside of what `torch.compile` compiles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("they are torch's", allow_module_level=True)

import torch
from torch import nn

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch

PROGRAM = """
import sys
import torch
assert "torch._dynamo" not in sys.modules, "torch loads it by itself"
import hvd_keras.torch as hvd
assert "torch._dynamo" not in sys.modules
step = torch.compile(lambda x: hvd.allreduce(x + 1) * 2, backend="eager")
hvd.init()
assert step(torch.ones(2)).tolist() == [4, 4]
assert torch._dynamo.utils.counters["graph_break"]  # not a part of a graph
"""


def test_the_compiler_is_loaded_by_those_who_compile() -> None:
    job = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert job.returncode == 0, job.stderr


def _sum(x: torch.Tensor) -> Any:
    return hvd_torch.allreduce(x, hvd.Sum, name="sum")


def _sum_in_place(x: torch.Tensor) -> Any:
    return hvd_torch.allreduce_(x.clone(), op=hvd.Sum, name="in place")


def _sum_later(x: torch.Tensor) -> Any:
    handle = hvd_torch.allreduce_async(x, op=hvd.Sum, name="later")
    return hvd_torch.synchronize(handle)


def _group(x: torch.Tensor) -> Any:
    return hvd_torch.grouped_allreduce([x], op=hvd.Sum, name="group")[0]


@pytest.mark.parametrize("sums", [_sum, _sum_in_place, _sum_later, _group])
def test_collectives_run_between_compiled_parts(
    sums: Callable[[torch.Tensor], Any],
) -> None:
    step = torch.compile(lambda x: sums(x + 1) * 2, backend="eager")
    for number in (1.0, 2.0):
        expected = [2 * hvd.size() * (number + 1)] * 3
        assert step(torch.full([3], number)).tolist() == expected


def test_an_optimizer_steps_as_it_does_uncompiled() -> None:
    x = torch.arange(12.0).reshape(4, 3) * (hvd.rank() + 1)

    def trained(is_compiled: bool) -> list[float]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = hvd_torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 1e-3),
            named_parameters=model.named_parameters(),
        )

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = torch.compile(step, backend="eager") if is_compiled else step
        for _ in range(3):
            run()
        weights: list[float] = model.weight.flatten().tolist()
        return weights

    weights = trained(is_compiled=True)
    assert weights == trained(is_compiled=False)
    assert hvd.allgather_object(weights) == [weights] * hvd.size()
