"""Lightning Fabric with DDP: two processes, a loader with a worker process, a checkpoint."""

import torch
from lightning.fabric import Fabric


def main() -> None:
    """Train a few steps and agree on the loss."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    data = torch.utils.data.TensorDataset(torch.rand(64, 16), torch.rand(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1)
    for inputs, targets in fabric.setup_dataloaders(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    total = fabric.all_reduce(loss.detach(), reduce_op="mean")
    fabric.save("fabric.pt", {"model": model, "optimizer": optimizer})
    fabric.barrier()
    print(f"rank {fabric.global_rank} of {fabric.world_size}: loss {total:.4f}", flush=True)


if __name__ == "__main__":
    main()
