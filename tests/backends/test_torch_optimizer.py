"""`hvd_keras.torch.DistributedOptimizer` trains as one process does."""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch

STEPS = 6
ROWS = 12  # of all ranks, in a step
SGD = torch.optim.SGD


class Embedded(nn.Module):
    """Looks rows up; a rank may use none of the second table."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(50, 4, sparse=True)
        self.second = nn.Embedding(20, 4, sparse=True)
        self.top = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = (x[:, 0].abs() * 40).long() % 50
        y = self.first(ids)
        (late,) = torch.nonzero(ids >= 40, as_tuple=True)
        if len(late):
            y = y.index_add(0, late, self.second(ids[late] - 40))
        return self.top(y)


class Branching(nn.Module):
    """Has a branch that few rows take, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(4, 4)
        self.seldom = nn.Linear(4, 1)
        self.always = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.always(x)
        is_large = x[:, 0] > 1
        if is_large.any():
            y = y + self.seldom(x) * is_large[:, None]
        return y


class Tied(nn.Module):
    """Uses one matrix twice, and layers in another order than defined."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.matrix = nn.Linear(4, 4, bias=False)
        self.again = self.matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.again(self.matrix(x)) * self.scale))


def dense() -> nn.Module:
    layers = [nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 1))


def convolutional() -> nn.Module:
    layers = [nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 6, 3, padding=1)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(6, 1))
    return model.to(memory_format=torch.channels_last)


def normalized() -> nn.Module:
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 1))


def build(make: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield torch.randn(ROWS, 4, generator=generator)


def bounds(rank: int) -> int:
    """The first row of a rank; the ranks have different numbers of rows."""
    return ROWS * rank * (rank + 1) // (hvd.size() * (hvd.size() + 1))


def own(x: torch.Tensor) -> torch.Tensor:
    return x[bounds(hvd.rank()) : bounds(hvd.rank() + 1)]


def loss_of(model: nn.Module, x: torch.Tensor, scale: float) -> torch.Tensor:
    return functional.mse_loss(
        model(x), x.sum(1, keepdim=True).sin(), reduction="sum"
    ) * (scale / ROWS)


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def train_alone(
    make: Callable[[], nn.Module], optimizer_of: Any, steps: int = STEPS
) -> list[torch.Tensor]:
    model = build(make)
    optimizer = optimizer_of(model.parameters())
    for x in batches(steps):
        optimizer.zero_grad()
        loss_of(model, x, 1.0).backward()
        optimizer.step()
    return state_of(model)


def train_together(
    make: Callable[[], nn.Module],
    optimizer_of: Any,
    steps: int = STEPS,
    **options: Any,
) -> list[torch.Tensor]:
    model = build(make, seed=hvd.rank())
    reference = build(make)
    if hvd.rank() == 0:
        model.load_state_dict(reference.state_dict())
    hvd_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    if any(isinstance(m, nn.BatchNorm1d) for m in model.modules()):
        model = hvd_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    groups = options.get("groups")
    if callable(groups):
        options["groups"] = groups(list(model.parameters()))
    optimizer = hvd_torch.DistributedOptimizer(
        optimizer_of(model.parameters()), model.named_parameters(), **options
    )
    # With Sum, the losses are parts of that of one process.
    scale = 1 if options.get("op") == hvd.Sum else hvd.size()
    passes = options.get("backward_passes_per_step", 1)
    for x in batches(steps):
        optimizer.zero_grad()
        for part in own(x).tensor_split(passes):
            loss_of(model, part, scale).backward()
        optimizer.step()
    return state_of(model)


def check(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9)


def decay(parameters: Any) -> torch.optim.Optimizer:
    return SGD(parameters, lr=0.1, weight_decay=0.5)


def plain(parameters: Any) -> torch.optim.Optimizer:
    return SGD(parameters, lr=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dense": (dense, adam, {}),
    "sum": (dense, momentum, {"op": hvd.Sum}),
    "accumulated": (dense, momentum, {"backward_passes_per_step": 2}),
    "two groups": (dense, momentum, {"groups": 2}),
    "more groups than parameters": (dense, momentum, {"groups": 99}),
    "lists": (dense, momentum, {"groups": lambda p: [[p[0], p[5]], [p[2]]]}),
    "predivided": (dense, momentum, {"gradient_predivide_factor": 2.0}),
    "convolution, channels last": (convolutional, momentum, {}),
    "sparse": (Embedded, plain, {}),
    "sparse as dense": (Embedded, plain, {"sparse_as_dense": True}),
    "unused parameters": (Branching, decay, {}),
    "tied": (Tied, momentum, {}),
    "batch normalization": (normalized, momentum, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(case: str) -> None:
    make, optimizer_of, options = CASES[case]
    wanted = train_alone(make, optimizer_of)
    check(train_together(make, optimizer_of, **options), wanted)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compression_is_close_to_one_process(kind: str) -> None:
    options = {"compression": getattr(hvd.Compression, kind)}
    wanted = train_alone(dense, plain)
    found = train_together(dense, plain, **options)
    check(found, wanted, 1e-2)
    exact = train_together(dense, plain)
    assert not all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))


def test_buckets_are_reduced_during_backward_from_the_second_step_on() -> None:
    model = build(dense)
    optimizer = hvd_torch.DistributedOptimizer(
        momentum(model.parameters()), model.named_parameters(), groups=3
    )
    counts = []
    for x in batches(3):
        optimizer.zero_grad()
        hvd_torch.barrier()
        before = hvd.stats()["num_requests"]
        loss_of(model, own(x), 1.0).backward()
        # The engine counts a request when its thread takes it up.
        deadline = time.monotonic() + (10 if counts else 0)
        while (count := hvd.stats()["num_requests"] - before) < 3:
            if time.monotonic() >= deadline:
                break
        counts.append(count)
        optimizer.step()
    assert counts[0] == 0
    assert min(counts[1:]) >= 3


def test_the_order_is_that_of_backward_on_rank_0() -> None:
    model = build(Tied)
    optimizer: Any = hvd_torch.DistributedOptimizer(
        plain(model.parameters()), model.named_parameters(), groups=99
    )
    loss_of(model, next(batches()), 1.0).backward()
    optimizer.step()
    names = [
        member.name
        for bucket in optimizer._hvd_reducer._buckets
        for member in bucket.members
    ]
    assert set(names[:2]) == {"last.weight", "last.bias"}
    assert names[2:] == ["scale", "matrix.weight"]


def test_gradients_are_there_after_synchronize() -> None:
    model, twin = build(dense), build(dense)
    optimizer: Any = hvd_torch.DistributedOptimizer(
        plain(model.parameters()), model.named_parameters()
    )
    alone = plain(twin.parameters())
    for x in batches():
        optimizer.zero_grad()
        loss_of(model, own(x), hvd.size()).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize(), warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
        alone.zero_grad()
        loss_of(twin, x, 1.0).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        alone.step()
    check(state_of(model), state_of(twin))


def test_a_step_after_synchronize_warns() -> None:
    model = build(dense)
    optimizer: Any = hvd_torch.DistributedOptimizer(plain(model.parameters()))
    loss_of(model, next(batches()), 1.0).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


@pytest.mark.parametrize("kind", [plain, torch.optim.LBFGS])
def test_closures(kind: Any) -> None:
    models = [build(dense).double(), build(dense).double()]
    losses = []
    for model, rows, scale in zip(
        models, (own, lambda x: x), (hvd.size(), 1), strict=True
    ):
        options = {"line_search_fn": "strong_wolfe"}
        if kind is plain:
            options = {}
        optimizer = kind(model.parameters(), **options)
        if model is models[0]:
            optimizer = hvd_torch.DistributedOptimizer(optimizer)
        for x in batches(3):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()  # noqa: B023
                loss = loss_of(model, rows(x.double()), scale)  # noqa: B023
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure)))
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-3)
    check(state_of(models[0]), state_of(models[1]), 1e-3)


def test_a_scheduler_may_come_before_or_after() -> None:
    results = []
    for comes_first in (True, False):
        model = build(dense)
        optimizer = momentum(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR
        if comes_first:
            scheduler = schedule(optimizer, 2, 0.5)
        optimizer = hvd_torch.DistributedOptimizer(optimizer)
        if not comes_first:
            scheduler = schedule(optimizer, 2, 0.5)
        for x in batches():
            optimizer.zero_grad()
            loss_of(model, own(x), hvd.size()).backward()
            optimizer.step()
            scheduler.step()
        results.append(state_of(model))
    check(*results, 0)
    twin = build(dense)
    alone = momentum(twin.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(alone, 2, 0.5)
    for x in batches():
        alone.zero_grad()
        loss_of(twin, x, 1.0).backward()
        alone.step()
        scheduler.step()
    check(results[0], state_of(twin))


def test_parameters_may_thaw_and_come_later() -> None:
    def run(model: Any, optimizer: Any, rows: Any, scale: float) -> Any:
        for step, x in enumerate(batches()):
            if step == 2:
                model[0].weight.requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": [model[4].bias]})
            optimizer.zero_grad()
            loss_of(model, rows(x), scale).backward()
            optimizer.step()
        return state_of(model)

    models = build(dense), build(dense)
    for model in models:
        model[0].weight.requires_grad_(False)
    optimizers = [plain(list(model.parameters())[:5]) for model in models]
    distributed = hvd_torch.DistributedOptimizer(optimizers[0])
    found = run(models[0], distributed, own, hvd.size())
    check(found, run(models[1], optimizers[1], lambda x: x, 1.0))


def test_two_optimizers_at_once() -> None:
    def run(wrap: Any, rows: Any, scale: float) -> Any:
        models = build(dense), build(dense, seed=4)
        optimizers = [wrap(plain(model.parameters())) for model in models]
        for x in batches():
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, rows(x), scale).backward()
            for optimizer in reversed(optimizers):
                optimizer.step()
        return [*state_of(models[0]), *state_of(models[1])]

    found = run(hvd_torch.DistributedOptimizer, own, hvd.size())
    check(found, run(lambda optimizer: optimizer, lambda x: x, 1.0))


def test_the_latest_optimizer_of_a_parameter_reduces_it() -> None:
    model, twin = build(dense), build(dense)
    for _ in range(3):
        optimizer = hvd_torch.DistributedOptimizer(plain(model.parameters()))
    alone = plain(twin.parameters())
    for x in batches():
        optimizer.zero_grad()
        loss_of(model, own(x), hvd.size()).backward()
        optimizer.step()
        alone.zero_grad()
        loss_of(twin, x, 1.0).backward()
        alone.step()
    check(state_of(model), state_of(twin))


def test_a_rank_without_data_joins() -> None:
    model = build(dense)
    optimizer = hvd_torch.DistributedOptimizer(plain(model.parameters()))
    steps = 2 if hvd.rank() == 0 else 4
    for x in batches(steps):
        optimizer.zero_grad()
        loss_of(model, x, hvd.size()).backward()
        optimizer.step()
    last = hvd_torch.join()
    assert last != 0
    hvd_torch.broadcast_parameters(model.state_dict(), root_rank=last)
    totals = hvd_torch.allreduce(next(model.parameters()).detach())
    torch.testing.assert_close(totals, next(model.parameters()).detach())


def test_adasum() -> None:
    """Equal steps stay what they are; orthogonal ones add up."""
    model = nn.Linear(hvd.size(), 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = hvd_torch.DistributedOptimizer(
        SGD(model.parameters(), lr=1.0), op=hvd.Adasum
    )
    for own_row, wanted in ((False, 1.0), (True, 2.0)):
        optimizer.zero_grad()
        x = torch.ones(1, hvd.size())
        if own_row:
            x = torch.eye(hvd.size())[hvd.rank()][None]
        (-model(x)).sum().backward()
        optimizer.step()
        torch.testing.assert_close(
            model.weight.detach(), torch.full((1, hvd.size()), wanted)
        )
    with pytest.raises(hvd.InvalidArgumentError, match="Adasum"):
        optimizer.skip_synchronize().__enter__()


def test_a_process_set_trains_without_the_others() -> None:
    hvd.shutdown()
    part = hvd.ProcessSet([0])
    hvd.init(process_sets=[part])
    model = build(dense)
    optimizer = hvd_torch.DistributedOptimizer(
        plain(model.parameters()), process_set=part
    )
    for x in batches():
        optimizer.zero_grad()
        loss_of(model, x[: 1 + hvd.rank()], 1.0).backward()
        optimizer.step()
    twin = build(dense)
    alone = plain(twin.parameters())
    for x in batches():
        alone.zero_grad()
        loss_of(twin, x[: 1 + hvd.rank()], 1.0).backward()
        alone.step()
    check(state_of(model), state_of(twin))
    hvd.shutdown()
    hvd.init()


def test_calls_in_a_wrong_order_raise() -> None:
    model = build(dense)
    optimizer: Any = hvd_torch.DistributedOptimizer(plain(model.parameters()))
    x = next(batches())
    for has_agreed in (False, True):
        loss_of(model, x, 1.0).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        with pytest.raises(hvd.InvalidArgumentError, match="backward_passes"):
            loss_of(model, x, 1.0).backward()
        # Once the ranks have agreed, the second `backward()` has changed what
        # was being reduced.
        if has_agreed and hvd.size() > 1:
            with pytest.raises(hvd.InvalidArgumentError, match="being reduced"):
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    for _ in range(2):
        loss_of(model, x, 1.0).backward()
    optimizer.step()


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_gradients_that_change_while_they_are_reduced_raise() -> None:
    model, x = build(dense), torch.ones(4, 4)
    optimizer = hvd_torch.DistributedOptimizer(
        SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    hvd_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    for clips_early in (False, True):
        optimizer.zero_grad()
        model(x).sum().backward()
        if clips_early:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with pytest.raises(hvd.InvalidArgumentError, match="synchronize"):
                optimizer.step()
            continue
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()


def test_it_stays_the_optimizer_that_it_was() -> None:
    model = build(dense)
    optimizer = momentum(model.parameters())
    assert hvd_torch.DistributedOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, SGD)
    loss_of(model, next(batches()), 1.0).backward()
    optimizer.step()
    for twin in (
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
    ):
        assert type(twin) is SGD
        assert len(twin.state_dict()["state"]) == 6
    copied = copy.deepcopy(model)
    pickle.dumps(model)
    loss_of(copied, next(batches()), 1.0).backward()  # nobody reduces it


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "not an optimizer": lambda m, wrap: wrap("adam"),
    "op": lambda m, wrap: wrap(plain(m.parameters()), op=hvd.Max),
    "twice": lambda m, wrap: wrap(wrap(plain(m.parameters()))),
    "passes": lambda m, wrap: wrap(
        plain(m.parameters()), backward_passes_per_step=0
    ),
    "predivide": lambda m, wrap: wrap(
        plain(m.parameters()), op=hvd.Sum, gradient_predivide_factor=2.0
    ),
    "names twice": lambda m, wrap: wrap(
        plain(m.parameters()), [("x", p) for p in m.parameters()]
    ),
    "names missing": lambda m, wrap: wrap(
        plain(m.parameters()), list(m.named_parameters())[:3]
    ),
    "no names": lambda m, wrap: wrap(plain(m.parameters()), m.parameters()),
    "negative groups": lambda m, wrap: wrap(plain(m.parameters()), groups=-1),
    "groups of names": lambda m, wrap: wrap(
        plain(m.parameters()), groups=[["x"]]
    ),
    "in two groups": lambda m, wrap: wrap(
        plain(m.parameters()), groups=[[*m.parameters()], [*m.parameters()]]
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise(case: str) -> None:
    with pytest.raises(hvd.InvalidArgumentError):
        WRONG[case](build(dense), hvd_torch.DistributedOptimizer)


def test_ranks_with_other_models_are_told() -> None:
    model = nn.Linear(4, 1 + hvd.rank())
    optimizer = hvd_torch.DistributedOptimizer(
        plain(model.parameters()), model.named_parameters()
    )
    model(next(batches())).sum().backward()
    with pytest.raises(hvd.MismatchError, match=r"weight|bias"):
        optimizer.step()
    good = build(dense)
    optimizer = hvd_torch.DistributedOptimizer(plain(good.parameters()))
    loss_of(good, next(batches()), 1.0).backward()
    optimizer.step()
