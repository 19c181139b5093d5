"""Parameters, states of optimizers, objects and samplers travel on torch."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rate as a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, history_size=3),
}


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def step(model: nn.Module, optimizer: Any, times: int = 1) -> None:
    x = torch.arange(12.0).reshape(4, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(times):
        optimizer.step(closure)


def all_equal(tensors: dict[str, torch.Tensor]) -> bool:
    everywhere = hvd_torch.allgather_object(dict(tensors))
    return all(
        torch.equal(other[name], value)
        for other in everywhere
        for name, value in tensors.items()
    )


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_models_that_differ_name_the_parameter() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2 + hvd.rank()))
    with pytest.raises(hvd.MismatchError, match=r"'1\.weight'.*Build the same"):
        hvd_torch.broadcast_parameters(model.state_dict(), 0)


@pytest.mark.parametrize("root", [0, 1])
def test_parameters(root: int) -> None:
    model = model_of(hvd.rank())
    model[1].running_mean += hvd.rank()
    mine = {k: v.clone() for k, v in model.state_dict().items()}
    hvd_torch.broadcast_parameters(model.state_dict(), root)
    for name, value in model.state_dict().items():
        others = hvd_torch.broadcast(mine[name], root)
        assert torch.equal(value, others), name
    hvd_torch.broadcast_parameters(model_of(hvd.rank()).named_parameters(), 0)
    hvd_torch.broadcast_parameters({}, root)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("is_distributed", [False, True])
def test_state_of_an_optimizer(name: str, is_distributed: bool) -> None:
    model = model_of(3)
    optimizer = OPTIMIZERS[name](model.parameters())
    if hvd.rank() == 1:
        step(model, optimizer, 3)
        optimizer.param_groups[0]["lr"] /= 4
    if is_distributed:
        optimizer = hvd_torch.DistributedOptimizer(optimizer)
    hvd_torch.broadcast_optimizer_state(optimizer, 1)
    hvd_torch.broadcast_parameters(model.state_dict(), 1)
    states = hvd_torch.allgather_object(optimizer.state_dict())
    for other in states:
        assert str(other) == str(states[1])
    assert bool(states[0]["state"]) is (name != "plain SGD")
    step(model, optimizer)  # all go on alike
    assert all_equal(model.state_dict())


def test_objects() -> None:
    rank = hvd.rank()
    obj = {
        "rank": rank,
        "state": collections.OrderedDict(
            a=torch.full((2,), rank), b=[torch.tensor(1.5), (None, "x")]
        ),
        "half": torch.tensor([rank + 0.5], dtype=torch.bfloat16),
        "looks packed": (1, "float32", [2]),
    }
    found = hvd_torch.broadcast_object(obj, 1)
    assert found["rank"] == 1
    assert type(found["state"]) is collections.OrderedDict
    assert found["state"]["a"].tolist() == [1, 1]
    assert found["state"]["b"][1] == (None, "x")
    assert found["half"].dtype == torch.bfloat16
    assert found["half"].item() == 1.5
    assert found["looks packed"] == (1, "float32", [2])
    everything = hvd_torch.allgather_object(obj)
    assert [each["state"]["a"][0].item() for each in everything] == list(
        range(hvd.size())
    )
    with pytest.raises(TypeError):
        hvd_torch.broadcast_object(object())


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sampler_deals_out_what_is_left(rows: int, shuffle: bool) -> None:
    sampler = hvd.elastic.ElasticSampler(range(rows), shuffle, seed=5)
    dealt = hvd.allgather_object(list(sampler))
    assert {len(own) for own in dealt} == {len(sampler)}
    assert {row for own in dealt for row in own} == set(range(rows))
    sampler.set_epoch(1)
    first = hvd.allgather_object(list(sampler))
    if shuffle and rows > 1:
        assert first != dealt
    sampler.record_batch(0, 2)
    done = {row for own in first for row in own[:2]}
    state = hvd.elastic.TorchState(sampler=sampler, epoch=1)
    state.sync()
    left = hvd.allgather_object(list(sampler))
    assert {row for own in left for row in own} == set(range(rows)) - done
    assert sampler.get_indices(0, 1) == list(sampler)[:1]
    state.restore()
    assert sampler.state_dict()["processed_indices"] == done
    sampler.set_epoch(2)
    assert len(sampler) == -(-rows // hvd.size())


def test_a_torch_state() -> None:
    model = model_of(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=hvd.rank(), batch=0)
    state.root_rank = 1
    step(model, optimizer, 1 + hvd.rank())
    state.sync()
    assert state.epoch == 1
    assert state.model is model
    assert optimizer.state_dict()["state"][0]["step"] == 2
    assert all_equal(model.state_dict())
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    step(model, optimizer)
    state.epoch = 7
    state.restore()
    assert state.epoch == 1
    assert optimizer.state_dict()["state"][0]["step"] == 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name])
    step(model, optimizer)
    state.save()
    step(model, optimizer)
    state.restore()
    assert optimizer.state_dict()["state"][0]["step"] == 3
    state.model = other = model_of(5)
    state.optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    state.sync()
    assert state.model is other


def test_only_objects_in_a_torch_state() -> None:
    state = hvd.elastic.TorchState(step=hvd.rank())
    state.sync()
    assert (state.step, state.model, state.optimizer) == (0, None, None)


def test_batch_normalization_outside_of_training() -> None:
    layer = hvd_torch.SyncBatchNorm(2)
    x = torch.arange(6.0).reshape(3, 2) + 100 * hvd.rank()
    everything = hvd_torch.allgather(x)
    twin = nn.BatchNorm1d(2)
    torch.testing.assert_close(layer(x), twin(everything)[3 * hvd.rank() :][:3])
    torch.testing.assert_close(layer.running_var, twin.running_var)
    layer.eval()
    twin.eval()
    torch.testing.assert_close(layer(x), twin(x))
    images = torch.arange(32.0).reshape(2, 2, 2, 4)

    one = images[:, :, 0, 0]
    torch.testing.assert_close(layer(images)[:, :, 0, 0], twin(one))


def test_batch_normalization_of_no_rows_and_large_means() -> None:
    layer = hvd_torch.SyncBatchNorm(2, momentum=None)
    count = 0 if hvd.rank() == 0 else 4
    x = 10_000 + torch.randn(
        count, 2, generator=torch.Generator().manual_seed(1)
    )
    x.requires_grad_()
    y = layer(x)
    everything = hvd_torch.allgather(x.detach())
    twin = nn.BatchNorm1d(2, momentum=None).double()
    wanted = twin(everything.double())[4 * (hvd.rank() - 1) :][:count]
    torch.testing.assert_close(y.double(), wanted, rtol=1e-3, atol=1e-2)
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() < 1 if count else True
    torch.testing.assert_close(
        layer.running_var.double(), twin.running_var, rtol=1e-3, atol=0
    )


WRONG: dict[str, Any] = {
    "parameters": lambda: hvd_torch.broadcast_parameters([torch.ones(1)], 0),
    "not tensors": lambda: hvd_torch.broadcast_parameters({"a": 1}, 0),
    "root": lambda: hvd_torch.broadcast_parameters({"a": torch.ones(1)}, 99),
    "root of a state": lambda: hvd_torch.broadcast_optimizer_state(
        torch.optim.SGD([torch.ones(1)], lr=1.0), 99
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_raise(case: str) -> None:
    with pytest.raises(hvd.InvalidArgumentError):
        WRONG[case]()
