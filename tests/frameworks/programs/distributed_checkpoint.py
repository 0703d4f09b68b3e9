"""torch.distributed.checkpoint: two ranks save a shared state in parts, and load it again."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def make():
    """Return a model and its optimizer, after one step."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.rand(8, 16)).sum().backward()
    optimizer.step()
    return model, optimizer


def main() -> None:
    """Save, spoil, load, compare."""
    dist.init_process_group("gloo")
    model, optimizer = make()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="checkpoint")
    expected = model.module.weight.detach().clone()
    model, optimizer = make()
    assert not torch.equal(model.module.weight, expected)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id="checkpoint")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    same = torch.equal(model.module.weight, expected)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: same {same}", flush=True)


if __name__ == "__main__":
    main()
