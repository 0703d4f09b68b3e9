"""A run without any fault, told by hand: twelve steps on two ranks, every third one saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastic_harness.history.events import FileWritten

from tests.unit.history.story import Story

__all__ = ["undisturbed"]

Saved = Sequence[tuple[str, str, int]]


def a_file_that_is_renamed(step: int) -> Saved:
    """Return what a script writes that renames its checkpoint: path, how, and size."""
    return (
        [("out/newest.pt.4711", "written", 0), ("out/newest.pt", "moved", 4000)]
        if step % 3 == 0
        else []
    )


def undisturbed(
    *,
    steps: int = 12,
    begins: int = 0,
    digest: str | None = "x",
    saves: Callable[[int], Saved] = a_file_that_is_renamed,
    per_epoch: int = 4,
    leaves: Callable[[int], str] | None = None,
    began_with: str | None = None,
) -> Story:
    """Tell the run; each step uses two samples, of which an epoch has eight.

    `leaves` gives the digest of the parameters after a step, where the optimizer counts nothing,
    and `began_with` is that of the beginning.
    """
    source = "state" if leaves is None else "parameters"
    story = Story().round(1, ["n1", "n2"])
    for rank in (0, 1):
        story.resume(1, rank, begins, began_with)
    for step in range(begins + 1, begins + steps + 1):
        epoch, place = divmod(step - 1, per_epoch)
        for rank in (0, 1):
            story.drawn(1, rank, step, 2 * place + rank, epoch=epoch)
            left = leaves and leaves(step)
            story.step(1, rank, step, step_source=source, parameters=left)
        for path, how, size in saves(step):
            story.tell("cluster", "", FileWritten(path=path, how=how, size=size or None))
    for rank in (0, 1):
        if digest is not None:
            losses = tuple(1 + 0.1 * (step % 2) for step in range(6))
            state = {"norm": 2.0, "sketch": (1.0, 1.0), "losses": losses}
            story.hashed(1, rank, digest, step=begins + steps, **state)
    return story.finish(1).end()
