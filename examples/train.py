"""Train a small character model, and survive whatever the launcher does to it.

The script knows nothing of the launcher that runs it. All of these work, on CPUs and on GPUs:

    python examples/train.py --steps 200
    torchrun --standalone --nproc-per-node=2 examples/train.py --steps 200
    pytest-elastic run --standalone --nproc-per-node=2 examples/train.py --steps 200

What it takes to be restarted at any moment, with any number of workers:

**Data.** One seeded permutation per epoch for the whole job, and one cursor into it. Every step
consumes the next `--global-batch` samples, split over however many ranks there are, so each epoch
sees each sample exactly once whatever the world size was on the way. The cursor counts samples that
were trained on, not those that a loader has fetched ahead.

**Checkpoints.** Rank 0 writes them: to a temporary file, flushed to the disk, then renamed. The
name carries generation, step and a digest of the content, so a torn file is noticed and the one
before it is used. Every start claims a new *generation* in the directory; a forgotten rank 0 of an
older one finds the claim and refuses to write, and could not win anyway, since generations sort
before steps. The directory has to be visible to every node that may come to hold rank 0.

**SIGTERM** means "leave, you have a moment". One rank must not leave alone: the others would hang
in their next collective. So each step all-reduces, along with the loss, who has been asked to
leave. All ranks learn of it at the same step; rank 0 checkpoints that very step, all wait until it
is on disk, and no step is lost. Then:

- a rank that was asked leaves with status 143, as if SIGTERM had killed it;
- a rank that was not asked cannot go on without the others. It waits for its launcher, which will
  stop it too when it re-forms the group (pytest-elastic does so at once, and counts no failure).
  torchrun does not tell the other nodes that one is leaving: there the wait ends after
  `PEERS_LEFT_WAIT_S` and the rank fails on purpose, which is the only thing torchrun reacts to
  (it costs one of --max-restarts).

A rank that is asked to leave while its peers are already dead will never see the end of its step.
It gives the step several times the longest one so far and then leaves without a checkpoint: a
launcher that waits for it would wait its whole grace period for nothing. The same goes for the
checkpoint of that step, which needs all of them, when a peer's notice is over too soon. A second
SIGTERM changes nothing, because launchers signal a process and then its group. A SIGTERM during the
last step is too late to matter: the job is done and ends with 0.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

WINDOW = 32  # characters a sample predicts
VOCABULARY = 128  # ASCII; whatever else the text holds becomes "?"
WIDTH, HEADS = 32, 2  # 18 000 parameters: under 4 ms a step on one core
WARMUP_STEPS = 20
CHECKPOINTS_KEPT = 2  # the newest may be torn by the crash that makes us need it
LEFT_BY_SIGTERM = 128 + signal.SIGTERM
# Our launcher stops the others within milliseconds; on torchrun every second here is lost time.
PEERS_LEFT_WAIT_S = 5.0
_KEPT: list[object] = []  # see Job.close


def say(text: str) -> None:
    """Print a line in one piece: all ranks may share one terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# Data


class ElasticBatchSampler(Sampler[list[int]]):
    """This rank's share of every global batch, from a position that any world size can go on from.

    The position is (epoch, cursor): how many samples of the epoch's permutation the whole job has
    trained on. Iterating yields the shares of the rest of the epoch and moves nothing, because a
    loader fetches ahead; `advance` moves the position by one global step, after the step.
    """

    def __init__(
        self, samples: int, global_batch: int, *, rank: int = 0, world_size: int = 1, seed: int = 0
    ) -> None:
        self.samples = samples
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        self.cursor = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Yield one list of indices for each step left in this epoch; the last may be empty."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.samples, generator=generator).tolist()
        for start in range(self.cursor, self.samples, self.global_batch):
            batch = order[start : start + self.global_batch]
            yield batch[self.rank :: self.world_size]

    def __len__(self) -> int:
        """Return how many steps are left in this epoch."""
        return (self.samples - self.cursor + self.global_batch - 1) // self.global_batch

    def advance(self) -> int:
        """Move past one global step and return how many samples it had, over all ranks."""
        consumed = min(self.global_batch, self.samples - self.cursor)
        self.cursor += consumed
        if self.cursor == self.samples:
            self.epoch, self.cursor = self.epoch + 1, 0
        return consumed

    def state_dict(self) -> dict[str, int]:
        """Return the position, and what it is a position in."""
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "seed": self.seed,
            "samples": self.samples,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position; the saved seed holds, or the epoch would repeat samples."""
        if state["samples"] != self.samples:
            message = (
                f"cannot resume: the checkpoint counts {state['samples']} samples to an epoch, "
                f"this run {self.samples}. Use the same --samples, or another --checkpoint-dir."
            )
            raise ValueError(message)
        self.epoch, self.cursor, self.seed = state["epoch"], state["cursor"], state["seed"]


class TextWindows(Dataset[Tensor]):
    """Consecutive windows of the language reference that ships inside Python itself."""

    def __init__(self, samples: int) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        codes = torch.tensor(list(text.encode("ascii", errors="replace")), dtype=torch.uint8)
        windows = codes.unfold(0, WINDOW + 1, WINDOW)
        self.windows = windows[: samples or len(windows)].long()

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tensor:
        return self.windows[index]


def collate(windows: Sequence[Tensor]) -> Tensor:
    """Stack windows; an epoch's last batch can leave a rank without any."""
    return torch.stack(list(windows)) if windows else torch.empty(0, WINDOW + 1, dtype=torch.long)


def ignore_sigterm(_worker: int) -> None:
    """Keep a loader's process alive when its group gets SIGTERM: the last step needs its data."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


# Model


class CharacterModel(nn.Module):
    """A one-layer transformer that predicts the next character; returns the *sum* of the losses."""

    mask: Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(WINDOW, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.predict = nn.Linear(WIDTH, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(WINDOW)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        x = self.characters(windows[:, :-1]) + self.positions
        logits = self.predict(self.layer(x, self.mask, is_causal=True)).flatten(0, 1)
        loss: Tensor = functional.cross_entropy(logits, windows[:, 1:].flatten(), reduction="sum")
        return loss


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters: equal digests mean equal bits."""
    sha = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        sha.update(bytes(tensor.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return sha.hexdigest()


# Checkpoints


class Superseded(RuntimeError):
    """A newer start of this job has claimed the checkpoint directory."""


class Checkpoints:
    """A directory of `checkpoint-GENERATION-STEP-DIGEST.pt` files; the newest is the last by name.

    Only rank 0 has one. Each file is an ordinary `torch.save` of plain values and tensors.
    """

    NAME = re.compile(r"checkpoint-(\d{6})-(\d{9})-([0-9a-f]{16})\.pt")
    CLAIM = re.compile(r"generation-(\d{6})")

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.generation = self._claim()

    def _claim(self) -> int:
        """Take the next generation; creating its file is what two starts cannot both do."""
        while True:
            generation = 1 + max(self._newest_claim(), *(g for g, _ in self._present()), 0)
            claim = self.directory / f"generation-{generation:06d}"
            with suppress(FileExistsError):
                claim.touch(exist_ok=False)
                left_behind = [*self.directory.glob("generation-*"), *self.directory.glob("*.tmp")]
                for older in left_behind:
                    if older.suffix or older.name < claim.name:
                        older.unlink(missing_ok=True)
                return generation

    def _newest_claim(self) -> int:
        names = (self.CLAIM.fullmatch(entry.name) for entry in self.directory.iterdir())
        return max((int(name[1]) for name in names if name), default=0)

    def _present(self) -> list[tuple[int, Path]]:
        """Return (generation, path) of every checkpoint, the newest first."""
        names = (self.NAME.fullmatch(entry.name) for entry in self.directory.iterdir())
        found = [(int(name[1]), self.directory / name[0]) for name in names if name]
        return sorted(found, key=lambda item: item[1].name, reverse=True)

    def newest_valid(self) -> dict[str, Any] | None:
        """Load the newest checkpoint whose content is what its name says, if there is one."""
        for _, path in self._present():
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest()[:16] != path.stem[-16:]:
                say(f"checkpoint {path.name} is torn; trying an older one")
                continue
            state: dict[str, Any] = torch.load(
                io.BytesIO(content), map_location="cpu", weights_only=True
            )
            return state
        return None

    def write(self, state: dict[str, Any]) -> None:
        """Put `state` on disk so that a crash at any moment leaves this or the previous one."""
        if (claim := self._newest_claim()) > self.generation:
            message = (
                f"will not write step {state['step']}: this is generation {self.generation} of the "
                f"job, and generation {claim} has started. This process should have been stopped."
            )
            raise Superseded(message)
        content = io.BytesIO()
        torch.save(state, content)
        mark = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
        path = self.directory / f"checkpoint-{self.generation:06d}-{state['step']:09d}-{mark}.pt"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        for _, older in self._present()[CHECKPOINTS_KEPT:]:
            older.unlink(missing_ok=True)


# Leaving


class Leaving:
    """Whether SIGTERM has come, and what to do when the step it came in never ends.

    A thread listens, because Python runs signal handlers between two bytecodes of the main thread,
    and a main thread that waits for dead peers inside a collective does not get to the next one.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.settled = threading.Event()  # all ranks know, or the work is done
        self.saved = threading.Event()  # no rank waits for another any more, or the work is done
        self.longest_step_s = 0.0

    def watch(self) -> None:
        """Start to listen; called once, from the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._listen, args=(reading,), daemon=True).start()

    def _listen(self, reading: int) -> None:
        while signal.SIGTERM not in os.read(reading, 64):
            pass
        self.asked.set()
        patience_s = 1.0 + 4 * self.longest_step_s
        if not (self.settled.wait(patience_s) and self.saved.wait(patience_s + 4.0)):  # slow disks
            what = "last checkpoint" if self.settled.is_set() else "step"
            say(
                f"SIGTERM, and the {what} did not end within seconds: the peers are gone; "
                "leaving without a checkpoint"
            )
            os._exit(LEFT_BY_SIGTERM)


class PeersLeft(RuntimeError):
    """Other ranks left, this one was not told to, and its launcher did nothing about it."""


# The job


@dataclass(frozen=True, kw_only=True)
class World:
    """Who this process is among the others."""

    rank: int
    size: int
    device: torch.device
    grouped: bool  # False: started without a launcher, alone, no process group

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        if self.grouped:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's tensor, on every rank."""
        if not self.grouped:
            return [tensor]
        mine = tensor.to(self.device)
        everyones = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyones, mine)
        return [item.cpu() for item in everyones]

    def from_rank_0(self, value: Any) -> Any:  # noqa: ANN401 - whatever rank 0 has, pickled
        """Give every rank what rank 0 has."""
        if not self.grouped:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def choose_device(wanted: str) -> torch.device:
    """Return this rank's GPU, if there is one for every rank of this node, else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # NCCL refuses two ranks on one GPU.
    if wanted == "cuda" or (wanted == "auto" and 0 < local_size <= torch.cuda.device_count()):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(1)  # more are slower on a model of this size
    return torch.device("cpu")


def join_world(options: argparse.Namespace) -> World:
    """Join the process group that the launcher's environment describes, if there is a launcher."""
    device = choose_device(options.device)
    if "RANK" not in os.environ:
        return World(rank=0, size=1, device=device, grouped=False)
    cuda = device.type == "cuda"
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        device_id=device if cuda else None,
        timeout=timedelta(seconds=options.collective_timeout)
        if options.collective_timeout
        else None,
    )
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=device, grouped=True)


class Job:
    """Model, optimizer, schedule and position, and how they go to disk and back."""

    def __init__(self, options: argparse.Namespace, world: World, leaving: Leaving) -> None:
        self.options, self.world, self.leaving = options, world, leaving
        self.data = TextWindows(options.samples)
        self.sampler = ElasticBatchSampler(
            len(self.data),
            options.global_batch,
            rank=world.rank,
            world_size=world.size,
            seed=options.seed,
        )
        torch.manual_seed(options.seed)
        self.model = CharacterModel(options.dropout).to(world.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / WARMUP_STEPS, (WARMUP_STEPS / (step + 1)) ** 0.5),
        )
        self.step = 0
        self.loss = float("nan")
        self.checkpoints = Checkpoints(Path(options.checkpoint_dir)) if world.rank == 0 else None
        self._resume()
        self.replica: nn.Module = (
            DistributedDataParallel(self.model) if world.grouped else self.model
        )

    def say(self, text: str) -> None:
        """Print a line, on rank 0 only."""
        if self.world.rank == 0:
            say(text)

    def _resume(self) -> None:
        """Go to the newest valid checkpoint; rank 0 reads it for all, so that all take the same."""
        found = self.checkpoints.newest_valid() if self.checkpoints else None
        state = self.world.from_rank_0(found)
        torch.manual_seed(self.options.seed * 1_000_003 + 7919 * self.world.rank)
        if state is None:
            self.say(f"starting at step 0, world size {self.world.size}")
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.sampler.load_state_dict(state["sampler"])
        self.step, self.loss = state["step"], state["loss"]
        if len(state["random"]) == self.world.size:  # in another world there are other streams
            self._set_random_state(state["random"][self.world.rank])
        else:
            torch.manual_seed((self.options.seed + self.step) * 1_000_003 + 7919 * self.world.rank)
        self.say(f"resumed at step {self.step}, world size {self.world.size}")

    def _random_state(self) -> Tensor:
        if self.world.device.type == "cuda":
            return torch.cuda.get_rng_state()
        return torch.get_rng_state()

    def _set_random_state(self, state: Tensor) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.set_rng_state(state)
        else:
            torch.set_rng_state(state)

    def checkpoint(self, *, must_succeed: bool = False) -> None:
        """Write a checkpoint of this step; every rank calls it, since it gathers all random states.

        A full disk costs the checkpoint and not the job: the one before is still there, and the
        next may fit. Only the last one must succeed, because it is the result.
        """
        random = self.world.gather(self._random_state())
        if self.checkpoints is None:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "sampler": self.sampler.state_dict(),
            "random": random,
            "step": self.step,
            "loss": self.loss,
        }
        try:
            self.checkpoints.write(state)
        except OSError as error:
            if must_succeed:
                raise
            self.say(f"no checkpoint of step {self.step}: {error}")

    def train(self) -> None:
        """Run until --steps are done, or until all ranks agree that some have to leave."""
        options = self.options
        loader = DataLoader(
            self.data,
            batch_sampler=self.sampler,
            collate_fn=collate,
            num_workers=options.num_workers,
            worker_init_fn=ignore_sigterm,
            generator=torch.Generator(),  # or each resume would draw from the model's stream
        )
        while self.step < options.steps:
            for windows in loader:  # what is left of this epoch
                began = time.monotonic()
                leavers = self._train_step(windows)
                if self.step % options.log_every == 0:
                    self.say(f"step {self.step} loss {self.loss:.4f} world_size {self.world.size}")
                if self.step == options.steps:
                    break
                if leavers:
                    self._leave(leavers)
                if self.step % options.checkpoint_every == 0:
                    self.checkpoint()
                self.leaving.asked.wait(max(0.0, options.step_time - (time.monotonic() - began)))
                self.leaving.longest_step_s = max(
                    self.leaving.longest_step_s, time.monotonic() - began
                )
        self.leaving.settled.set()
        self.leaving.saved.set()
        self.checkpoint(must_succeed=True)

    def _train_step(self, windows: Tensor) -> int:
        """Train on this rank's share of one global batch; return how many ranks must leave."""
        self.optimizer.zero_grad()
        loss = self.replica(windows.to(self.world.device))
        count = self.sampler.advance()
        # DDP averages over ranks, whose shares may differ: scaled so that the mean is over samples.
        (loss * (self.world.size / (count * WINDOW))).backward()
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        asked = float(self.leaving.asked.is_set())
        told = self.world.sum(torch.tensor([loss.item(), asked], device=self.world.device))
        total, leavers = told.tolist()
        self.loss = total / (count * WINDOW)
        return int(leavers)

    def _leave(self, leavers: int) -> None:
        """Save this step, then leave or wait to be stopped; does not return."""
        self.leaving.settled.set()
        self.checkpoint()
        self.close()
        self.leaving.saved.set()
        self.say(f"leaving at step {self.step}: {leavers} of {self.world.size} ranks got SIGTERM")
        if not self.leaving.asked.wait(PEERS_LEFT_WAIT_S):
            message = (
                f"{leavers} of {self.world.size} ranks left after step {self.step}, and this one "
                f"was not stopped within {PEERS_LEFT_WAIT_S:g} s: failing, so that it is restarted"
            )
            raise PeersLeft(message)
        raise SystemExit(LEFT_BY_SIGTERM)

    def close(self) -> None:
        """End the process group when rank 0 has written its last; all ranks come here at one step.

        The barrier has a second use. Gloo's threads need Python's lock to let go of a collective's
        tensors. To ask for it while Python finalises aborts the process; to ask for it while the
        replica's end, which waits for those threads, has it hangs (one job in ten did). While the
        barrier waits, what came before it is let go; its own tensors are kept to the end.
        """
        if self.world.grouped:
            _KEPT.append(barrier := dist.barrier(async_op=True))
            if barrier is not None:  # None: this rank is not in the group
                barrier.wait()
            dist.destroy_process_group()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    default_dir = os.environ.get("ELASTIC_CHECKPOINT_DIR", "checkpoints")
    parser = argparse.ArgumentParser(description="Train a small character model, elastically.")
    add = parser.add_argument
    add("--steps", type=int, default=200, help="global steps in total (default: %(default)s)")
    add("--checkpoint-every", type=int, default=10, metavar="STEPS")
    add("--checkpoint-dir", default=default_dir, help="shared by all nodes (default: %(default)s)")
    add("--global-batch", type=int, default=16, help="samples a step, over all ranks")
    add("--samples", type=int, default=2048, help="samples an epoch; 0: the whole text")
    add("--lr", type=float, default=3e-3)
    add("--dropout", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--step-time", type=float, default=0.0, metavar="SECONDS", help="let no step be shorter")
    add("--log-every", type=int, default=10, metavar="STEPS")
    add("--num-workers", type=int, default=0, help="loader processes of each rank")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--collective-timeout", type=float, metavar="SECONDS", help="default: torch's own")
    return parser.parse_args(arguments)


@record
def main(arguments: Sequence[str] | None = None) -> None:
    """Train to the end."""
    options = parse(arguments)
    leaving = Leaving()
    leaving.watch()
    world = join_world(options)
    say(f"rank {world.rank} of {world.size} on {world.device}, pid {os.getpid()}")
    job = Job(options, world, leaving)
    job.train()
    job.say(f"done: step {job.step} loss {job.loss:.4f} parameters sha256:{digest(job.model)}")
    job.close()


if __name__ == "__main__":
    main()
