"""What faulthandler writes, read back, and where in the script that is."""

from __future__ import annotations

import pytest
from elastic_harness.history.stacks import is_in_collective, parse_stacks, place_in_script

# Of Python 3.11; the first thread is of 3.14, which names them.
DUMP = """\
Thread 0x00007f0000000001 [Saver] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/me/saver.py", line 7 in save
  ...

Thread 0x00007f0000000002 (most recent call first):
  <no Python frame>

Current thread 0x00007f0000000003 (most recent call first):
  Garbage-collecting
  File "/home/me/train.py", line 88 in save
  File "/home/me/train.py", line 120 in <module>
"""
SITE = "/venv/lib/python3.11/site-packages"
ALL_REDUCE = (
    f"{SITE}/torch/distributed/distributed_c10d.py:3252 in all_reduce",
    f"{SITE}/torch/distributed/c10d_logger.py:83 in wrapper",
)
BACKWARD = (
    f"{SITE}/torch/autograd/graph.py:841 in _engine_run_backward",
    f"{SITE}/torch/_tensor.py:630 in backward",
)
SCRIPT = ("/home/me/train.py:41 in step", "/home/me/train.py:90 in <module>")


def test_threads_are_told_apart_and_the_main_one_comes_first() -> None:
    """By its number; where that is not there, the last is the main one, as Python lists them."""
    main = ("/home/me/train.py:88 in save", "/home/me/train.py:120 in <module>")
    saver = ("/usr/lib/python3.11/threading.py:324 in wait", "/home/me/saver.py:7 in save")
    assert parse_stacks(DUMP, 0x7F0000000003) == (main, (saver,))
    assert parse_stacks(DUMP, 1) == (main, (saver,))
    assert parse_stacks(DUMP, 0x7F0000000001) == (saver, (main,))
    assert parse_stacks("", 1) == ((), ())
    assert parse_stacks(DUMP[:330], 0x7F0000000003)[1] == (saver,), "cut off in the middle"


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((*ALL_REDUCE, *SCRIPT), SCRIPT[0]),
        (SCRIPT, SCRIPT[0]),
        (("/usr/lib/python3.11/threading.py:324 in wait", *SCRIPT), SCRIPT[0]),
        (("/usr/lib64/python3.12/queue.py:180 in get", *SCRIPT), SCRIPT[0]),
        # The script is where a frame is that is nobody's; a package of the user's comes after it.
        ((f"{SITE}/trainer/loop.py:5 in run", *SCRIPT), SCRIPT[0]),
        ((*ALL_REDUCE, f"{SITE}/trainer/loop.py:5 in run"), f"{SITE}/trainer/loop.py:5 in run"),
        (("/home/me/lib/python3-course/train.py:1 in <module>",) * 2, None),
        (("<frozen runpy>:88 in _run_code",), ""),
        ((), ""),
    ],
)
def test_the_place_in_the_script_is_the_innermost_frame_of_it(
    frames: tuple[str, ...], place: str | None
) -> None:
    """Not torch's, not Python's: there everybody stands."""
    assert place_in_script(frames) == (frames[0] if place is None else place)


@pytest.mark.parametrize(
    ("frames", "is_in"),
    [
        ((*ALL_REDUCE, *SCRIPT), True),
        ((*BACKWARD, *SCRIPT), True),
        (SCRIPT, False),
        (("/usr/lib/python3.11/socket.py:700 in accept", *SCRIPT), False),
        # The script is called by torch's launcher: it is below the script, not in a collective.
        ((SCRIPT[0], f"{SITE}/torch/distributed/run.py:900 in main"), False),
        ((f"{SITE}/torch/nn/modules/module.py:1 in _call_impl", *SCRIPT), False),
        ((), False),
    ],
)
def test_a_collective_is_what_the_script_has_called(
    frames: tuple[str, ...], *, is_in: bool
) -> None:
    """A call of torch.distributed, or a backward pass, whose hooks reduce gradients."""
    assert is_in_collective(frames) is is_in
