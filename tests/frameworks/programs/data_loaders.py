"""DataLoader's workers, forked, spawned and forked by a server: each gives what none would give."""

import os

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Squares(Dataset):
    """Numbers that a class of `__main__` makes, in a process that must find it there."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor([index * index, 0 if get_worker_info() is None else 1])


def main():
    """Compare."""
    alone = [batch[:, 0].tolist() for batch in DataLoader(Squares(), batch_size=5)]
    same = True
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Squares(), batch_size=5, num_workers=2, multiprocessing_context=method)
        batches = list(loader)
        same = same and all(batch[:, 1].all() for batch in batches)
        same = same and [batch[:, 0].tolist() for batch in batches] == alone
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: same {bool(same)}", flush=True)


if __name__ == "__main__":
    main()
