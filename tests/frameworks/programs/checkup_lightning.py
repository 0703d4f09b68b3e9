"""Lightning's Trainer with DDP: a checkpoint every ten steps, and it resumes from the last."""

import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, _index):
        """Return the loss."""
        time.sleep(0.01)
        inputs, wanted = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), wanted)

    def configure_optimizers(self):
        """Adam, with decoupled weight decay."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    """Train for six epochs of twenty steps with three ranks."""
    lightning.seed_everything(0)
    inputs = torch.randn(360, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=6,
        callbacks=[ModelCheckpoint(dirpath="checkpoints", save_last=True, every_n_train_steps=10)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size=6, shuffle=True), ckpt_path="last")


if __name__ == "__main__":
    main()
