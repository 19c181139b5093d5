"""An elastic training loop on torch, written for Horovod."""

import argparse
import os
import sys
import zlib

import horovod.torch as hvd
import torch
from horovod.torch.elastic.sampler import ElasticSampler

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=0)
parser.add_argument("--until-size", type=int, default=0)
args = parser.parse_args()

hvd.init()
torch.manual_seed(1 + hvd.rank())
torch.set_num_threads(1)
lr = 0.01
dataset = torch.utils.data.TensorDataset(torch.arange(60.0).reshape(60, 1) / 60)
sampler = ElasticSampler(dataset, shuffle=True)
loader = torch.utils.data.DataLoader(dataset, batch_size=3, sampler=sampler)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(
    model.parameters(), lr=lr * hvd.size(), momentum=0.9
)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters()
)
rows = []


@hvd.elastic.run
def train(state):
    while state.epoch < 3 or hvd.size() < args.until_size:
        for batch, (data,) in enumerate(loader):
            if os.environ["HVD_MEMBER"] == "0" and state.step == args.kill_at:
                os.kill(os.getpid(), 9)
            optimizer.zero_grad()
            (model(data) - data).square().mean().backward()
            optimizer.step()
            state.step += 1
            state.sampler.record_batch(batch, 3)
            state.commit()
        rows.append(len(state.sampler.processed_indices))
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = lr * hvd.size()
    print("reset", hvd.size(), flush=True)


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0
)
state.register_reset_callbacks([on_state_reset])
train(state)
assert not {"keras", "tensorflow"} & set(sys.modules)
weights = zlib.crc32(str(model.state_dict()).encode())
rate = optimizer.param_groups[0]["lr"]
print("end", state.epoch, hvd.size(), rate, weights, flush=True)
