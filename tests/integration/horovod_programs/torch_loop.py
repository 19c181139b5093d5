"""A program for Horovod 0.28 and torch, with a loop of its own."""

import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from horovod.torch.mpi_ops import poll, synchronize
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(1 + hvd.rank())
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(42)
x = torch.rand(512, 8, generator=generator)
y = x.sum(dim=1, keepdim=True) - 4.0
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Linear(8, 16),
    torch.nn.BatchNorm1d(16),
    torch.nn.Tanh(),
    torch.nn.Linear(16, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    op=hvd.Average,
    gradient_predivide_factor=1.0,
    num_groups=2,
)
# Other libraries know a distributed optimizer by these.
assert hasattr(optimizer, "_allreduce_grad_async")
assert optimizer.backward_passes_per_step == 1
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

losses = []
for epoch in range(10):
    model.train()
    sampler.set_epoch(epoch)
    values = []
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(data), target)
        loss.backward()
        values.append(loss.detach())
        if batch % 2:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    scheduler.step()
    mean = torch.stack(values).mean()
    losses.append(hvd.allreduce(mean, name="avg_loss").item())

state = hvd.broadcast_object({"epoch": 9, "state": model.state_dict()}, 0)
for name, value in model.state_dict().items():
    if "running" not in name and "num_batches" not in name:
        assert torch.equal(state["state"][name], value), name
assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))

rank, size = hvd.rank(), hvd.size()
tensor = torch.full((2,), float(rank))
total = sum(range(size))
assert hvd.allreduce(tensor, average=False).tolist() == [total] * 2
assert hvd.allreduce(tensor, False, "positional").tolist() == [total] * 2
handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="in place")
while not poll(handle):
    pass
assert synchronize(handle) is tensor
assert tensor.tolist() == [total] * 2
rows = hvd.synchronize(hvd.allgather_async(torch.full((1,), rank)))
assert rows.tolist() == list(range(size))
splits = torch.ones(size, dtype=torch.int32)
received, counts = hvd.alltoall(torch.arange(size), splits=splits)
assert received.tolist() == [rank] * size
assert counts.dtype == torch.int32
assert counts.tolist() == [1] * size
received, counts = hvd.synchronize(
    hvd.alltoall_async(torch.arange(size), splits)
)
assert counts.tolist() == [1] * size
leaf = torch.ones(1, 1, requires_grad=True)
hvd.allgather(leaf).sum().backward()
assert leaf.grad.item() == 1  # an average, as the gradients of Horovod
(part,) = hvd.grouped_reducescatter([torch.ones(size, 1)], op=hvd.Sum)
assert part.tolist() == [[size]]
hvd.barrier()
assert hvd.join() in range(size)
for call in (
    lambda: hvd.allreduce(tensor, average=True, op=hvd.Sum),
    lambda: hvd.broadcast(tensor, root_rank=size),
    lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        named_parameters=[("a", each) for each in model.parameters()],
    ),
):
    try:
        call()
    except ValueError:
        continue
    raise AssertionError("no ValueError")
assert not {"keras", "tensorflow"} & set(sys.modules)
print("loss fell:", losses[-1] < losses[0] / 2)
