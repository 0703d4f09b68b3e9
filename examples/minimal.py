"""A training script that may be killed at any moment, and grown or shrunk: the least it takes.

What it must not lose is in one checkpoint, written by rank 0 where all nodes see it: weights,
optimizer, random numbers and the step, from which the place in the data follows.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

SAMPLES, GLOBAL_BATCH = 240, 24  # ten steps are an epoch, with any number of ranks
CHECKPOINT = Path(os.environ.get("ELASTIC_CHECKPOINT_DIR", "checkpoints")) / "newest.pt"
ONE_BEFORE = CHECKPOINT.with_name("one_before.pt")


class Numbers(Dataset):
    """The sum of eight numbers is to be learnt; each sample is always the same."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        numbers = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return numbers, numbers.sum().reshape(1)


class Batches(Sampler):
    """This rank's share of every global batch of an epoch, from a position in the epoch on."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.epoch = self.start = 0

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        for start in range(self.start, SAMPLES, GLOBAL_BATCH):
            yield order[start : start + GLOBAL_BATCH][self.rank :: self.world_size].tolist()


def save(model, optimizer, step):
    """Write a checkpoint to the disk, and then put it in place of the newest, which is kept."""
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"random": torch.get_rng_state(), "step": step}
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{CHECKPOINT}.{os.getpid()}", "wb", buffering=0) as file:
        torch.save(state, file)
        os.fsync(file.fileno())
    if CHECKPOINT.exists():
        os.replace(CHECKPOINT, ONE_BEFORE)
    os.replace(file.name, CHECKPOINT)


def load(model, optimizer):
    """Go to where the newest whole checkpoint was written; return how many steps are done."""
    for path in filter(Path.exists, (CHECKPOINT, ONE_BEFORE)):
        try:
            state = torch.load(path)
        except (OSError, RuntimeError, EOFError) as error:
            print(f"{path} is torn: {error}")
            continue
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return state["step"]
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    options = parser.parse_args()
    asked_to_leave = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_leave.append(True))
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights, and the same dropout, on every rank
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = load(model, optimizer)
    batches = Batches(rank, world_size)
    # A generator of its own: each walk through a loader draws a number, which dropout would miss.
    loader = DataLoader(Numbers(), batch_sampler=batches, generator=torch.Generator())
    while done < options.steps:
        batches.epoch, batches.start = divmod(done * GLOBAL_BATCH, SAMPLES)
        for numbers, wanted in loader:
            loss = nn.functional.mse_loss(model(numbers), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            # All ranks learn at the same step that one of them was asked to leave.
            is_leaving = torch.tensor(float(bool(asked_to_leave)))
            dist.all_reduce(is_leaving, op=dist.ReduceOp.MAX)
            is_last = done == options.steps
            if rank == 0 and (is_leaving or is_last or done % options.checkpoint_every == 0):
                save(model, optimizer, done)
            if is_leaving and not is_last:
                dist.barrier()  # no rank leaves before the checkpoint is written
                while not asked_to_leave:  # who was not asked is, in a moment: its peers are gone
                    time.sleep(0.01)
                sys.exit(128 + signal.SIGTERM)
            if is_last:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
