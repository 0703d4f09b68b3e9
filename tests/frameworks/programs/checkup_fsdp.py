"""FSDP2 with torch.distributed.checkpoint, as torch's tutorial has it: one folder a checkpoint."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, EVERY = 6, 10
CHECKPOINTS = Path("checkpoints")


class AppState(Stateful):
    """What a checkpoint has: weights, optimizer, and how many steps are done."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        """Return the state, sharded as it is."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        """Take the state of a checkpoint."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]


def newest():
    """Return the newest checkpoint that is complete: its metadata is written last."""
    found = [path.parent for path in CHECKPOINTS.glob("step-*/.metadata")]
    return max(found, key=lambda path: int(path.name.partition("-")[2]), default=None)


def main() -> None:
    """Train, from the newest checkpoint on if there is one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(360, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = AppState(model, optimizer)
    if (folder := newest()) is not None:
        dcp.load({"app": state}, checkpoint_id=folder)
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    first_epoch, first_batch = divmod(state.step, len(loader))
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (features, wanted) in enumerate(loader):
            if epoch == first_epoch and batch < first_batch:
                continue
            loss = torch.nn.functional.mse_loss(model(features), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
            state.step += 1
            if state.step % EVERY == 0:
                dcp.save({"app": state}, checkpoint_id=CHECKPOINTS / f"step-{state.step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
