"""What Python stacks say: from the text that faulthandler writes to the place where a rank stands.

A frame is text: "/path/train.py:88 in save". Frames are innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_in_collective", "parse_stacks", "place_in_script"]

_MAX_THREADS = 32
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

_OF_PYTHON = re.compile(r"^<|/lib(?:64)?/python3[.\d]*/(?!(?:site|dist)-packages/)")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_OF_TORCH = re.compile(r"/torch/")
_OURS = re.compile(r"/pytest_elastic/boot/|/elastic_harness/")
# The backward pass of a data-parallel model waits for its all-reduce below this function.
_COLLECTIVE = re.compile(r"/torch/distributed/|/torch/autograd/.* in _engine_run_backward$")


def parse_stacks(text: str, main: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the main thread's frames and those of the others, from what faulthandler writes.

    Innermost first. `main` is the main thread's number; without it, it is the last one.
    """
    threads: dict[int, list[str]] = {}
    frames: list[str] = []
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            frames = threads.setdefault(int(thread[1], 16), [])
        elif (frame := _FRAME.fullmatch(line)) is not None:
            frames.append(f"{frame[1]}:{frame[2]} in {frame[3]}")
    if main not in threads:
        main = next(reversed(threads), 0)
    others = [tuple(each) for number, each in threads.items() if number != main and each]
    return tuple(threads.get(main, ())), tuple(others[:_MAX_THREADS])


def place_in_script(frames: Sequence[str]) -> str:
    """Return the innermost frame of the script; of an installed package where there is none.

    Python's own frames, torch's and ours do not count. Empty where there is no other.
    """
    others = [frame for frame in frames if not (_OF_PYTHON.search(frame) or _OURS.search(frame))]
    script = (frame for frame in others if not _INSTALLED.search(frame))
    installed = (frame for frame in others if not _OF_TORCH.search(frame))
    return next(script, "") or next(installed, "")


def is_in_collective(frames: Sequence[str]) -> bool:
    """Tell whether the script is in a call of torch.distributed, or in a backward pass."""
    place = place_in_script(frames)
    inner = frames[: frames.index(place)] if place else frames
    return any(_COLLECTIVE.search(frame) for frame in inner)
