"""Lightning's Trainer with DDP: two processes, two epochs, its own checkpoint."""

import lightning
import torch


class Module(lightning.LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, _index):
        """Return the loss, and log its mean over the ranks."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train for two epochs."""
    lightning.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.rand(64, 16), torch.rand(64, 1))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, enable_progress_bar=False
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8, num_workers=1))
    loss = trainer.callback_metrics["loss"]
    rank, world_size = trainer.global_rank, trainer.world_size
    print(f"rank {rank} of {world_size}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
