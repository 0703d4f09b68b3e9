"""Plain SGD, and a DistributedSampler that shuffles; a checkpoint every ten steps."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, EVERY = 6, 10
CHECKPOINT = Path("checkpoints/last.pt")


def save(model, optimizer, epoch, batch):
    """Write beside the last checkpoint, and put it in its place."""
    CHECKPOINT.parent.mkdir(exist_ok=True)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"epoch": epoch, "batch": batch}, CHECKPOINT.with_suffix(".tmp"))
    os.replace(CHECKPOINT.with_suffix(".tmp"), CHECKPOINT)


def main() -> None:
    """Train, from the last checkpoint on if there is one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(360, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first_epoch = first_batch = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, first_batch = state["epoch"], state["batch"]
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (features, wanted) in enumerate(loader, 1):
            if epoch == first_epoch and batch <= first_batch:
                continue
            loss = torch.nn.functional.mse_loss(model(features), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
            step = epoch * len(loader) + batch
            print(f"step {step}: loss {loss:.4f}", flush=True)
            if dist.get_rank() == 0 and step % EVERY == 0:
                save(model, optimizer, epoch, batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
