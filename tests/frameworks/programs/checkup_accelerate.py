"""Accelerate: its own folders of checkpoints, and `skip_first_batches` to resume in an epoch."""

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EVERY = 6, 10


def main() -> None:
    """Train, from the newest checkpoint on if there is one."""
    configuration = ProjectConfiguration(
        project_dir=".", automatic_checkpoint_naming=True, total_limit=3
    )
    loading = DataLoaderConfiguration(use_seedable_sampler="--seedable-sampler" in sys.argv)
    accelerator = Accelerator(cpu=True, project_config=configuration, dataloader_config=loading)
    set_seed(0)
    inputs = torch.randn(360, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=6, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    if saved := [int(path.name.rpartition("_")[2]) for path in Path("checkpoints").glob("*_*")]:
        accelerator.load_state()  # the newest
        accelerator.project_configuration.iteration = max(saved) + 1
        done = (max(saved) + 1) * EVERY
    first_epoch, first_batch = divmod(done, len(loader))
    for epoch in range(first_epoch, EPOCHS):
        loader.set_epoch(epoch)
        batches = loader
        if epoch == first_epoch and first_batch:
            batches = accelerator.skip_first_batches(loader, first_batch)
        for features, wanted in batches:
            loss = torch.nn.functional.mse_loss(model(features), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            time.sleep(0.01)
            done += 1
            if done % EVERY == 0:
                accelerator.save_state()
    accelerator.end_training()


if __name__ == "__main__":
    main()
