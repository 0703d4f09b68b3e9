"""A script of Ray Train as its documentation says, on two or three workers: `TorchTrainer`."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from elastic_harness.observe import report_worker
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

STEPS = 40
CHECKPOINT_EVERY = 5


def train(_: dict[str, Any]) -> None:
    """Train on one worker, from the newest checkpoint."""
    report_worker()  # of what follows, nothing is for the harness
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    for step in range(begin + 1, STEPS + 1):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if step % CHECKPOINT_EVERY == 0:
            save(step, model, optimizer)


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Report a step, with the first worker's state."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, Path(folder, "state.pt"))
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    ray.init(logging_level="WARNING")
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=(2, 3), elastic_resize_monitor_interval_s=1.0),
        run_config=RunConfig(
            name="ray-train",
            storage_path=os.environ["ELASTIC_CHECKPOINT_DIR"],
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    result = trainer.fit()
    print(f"done: step {result.metrics['step']}")
