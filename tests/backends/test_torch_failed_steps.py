"""A step of an optimizer of torch that fails leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch
from hvd_keras.torch._buckets import DenseBucket

LARGE = 1 << 22  # it is on its way for longer than an error


class Layers(nn.Module):
    """Its last layer may have other units; its gradient comes first."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.full((LARGE,), 2.0))
        self.last = nn.Parameter(torch.full((units,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.large[:2].sum() * x).sum() * self.last.sum()


def optimizer_of(model: nn.Module, **options: Any) -> Any:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd_torch.DistributedOptimizer(
        sgd, model.named_parameters(), **options
    )


def test_no_reduction_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = []
    reset = DenseBucket.reset

    def noting(bucket: DenseBucket) -> None:
        ended.append(bucket.handle is None or bucket.handle.is_done)
        reset(bucket)

    monkeypatch.setattr(DenseBucket, "reset", noting)
    model = Layers(1 + hvd.rank())
    optimizer = optimizer_of(model, groups=2)
    for _ in range(3):
        model(torch.ones(2)).backward()
        with pytest.raises(hvd.MismatchError, match="last"):
            optimizer.step()
        assert model.last.detach().tolist() == [3.0] * (1 + hvd.rank())
        optimizer.zero_grad()
    assert all(ended)
    assert len(ended) == 6
    model = Layers(1)
    optimizer = optimizer_of(model, groups=2)
    model(torch.full((2,), 1.0 + hvd.rank())).backward()
    optimizer.step()
    mean = 1 + (hvd.size() - 1) / 2
    assert model.last.item() == pytest.approx(3.0 - 0.1 * 8 * mean)


def test_a_failed_adasum_takes_no_step() -> None:
    model = Layers(1 + hvd.rank())
    optimizer = optimizer_of(model, op=hvd.Adasum)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2)).backward()
        with pytest.raises(hvd.MismatchError):
            optimizer.step()
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
