"""Which global step a worker has done, and where it resumed, by what is said in its process."""

from __future__ import annotations

import pytest
from elastic_harness.observe.probe.elastic_probe_steps import StepCount

# "opt" makes an optimizer; "sgd" steps one that counts nothing, "adam:N" one that has done N;
# "report:N" and "resume:N" are the script's own words. Then: the steps, by count and global number.
STORIES = {
    "a report after each step": ("opt sgd report:21 sgd report:22", "1:- 1:21 2:22", 20),
    "a start is no step": ("opt report:20 sgd report:21", "1:- 1:21", 20),
    "a start said twice": ("opt report:20 report:20 sgd report:21", "1:- 1:21", 20),
    "a start before the optimizer": ("report:20 opt sgd report:21", "1:20 1:- 1:21", 20),
    "nothing is done at 0": ("report:0 report:1 report:2", "1:1 2:2", 0),
    "no optimizer: a report is a step": ("report:5 report:6", "1:5 2:6", 4),
    "no optimizer, and said to be a start": ("resume:5 report:6 report:7", "1:6 2:7", 5),
    "a start, and each second step": ("opt report:20 sgd sgd report:22", "1:- 2:- 2:22", 20),
    "each second step, and no start": (
        "opt sgd sgd report:22 sgd sgd report:24",
        "1:- 2:- 2:22 3:24",
        None,
    ),
    "a start that the first step contradicts": ("opt report:20 sgd report:11", "1:- 1:11", 10),
    "a start that later steps contradict": (
        "opt report:20 sgd sgd report:12",
        "1:- 2:- 2:12",
        None,
    ),
    "reports without the optimizer's steps": (
        "opt report:20 report:21 report:22",
        "1:21 2:22",
        None,
    ),
    "steps counted from 0": ("opt sgd report:0 sgd report:1", "1:- 1:0 2:1", None),
    "adam needs no report": ("opt adam:21 adam:22", "1:21 2:22", 20),
    "adam, and a start": ("opt report:20 adam:21 adam:22", "1:21 2:22", 20),
    "adam, and a report that agrees": (
        "opt adam:21 report:21 adam:22 report:22",
        "1:21 2:22",
        20,
    ),
    "adam, and a report that does not": ("opt adam:1 report:21", "1:1 1:21", 20),
    "from the beginning": ("report:1 report:2", "1:1 2:2", 0),
    "a start that is said too late": ("opt adam:21 resume:9", "1:21", 20),
    "sgd alone": ("opt sgd sgd", "1:- 2:-", None),
}


@pytest.mark.parametrize("name", STORIES)
def test_steps_and_starts_are_told_apart(name: str) -> None:
    """A report before the optimizer's first step is a start; what is not certain is None."""
    story, expected, resumed = STORIES[name]
    steps = StepCount()
    found: list[str] = []
    optimizers: list[str] = []
    steps.has_optimizer = lambda: bool(optimizers)
    for word in story.split():
        what, _, number = word.partition(":")
        is_step = False
        match what:
            case "opt":
                optimizers.append(what)
            case "sgd":
                is_step = steps.on_optimizer(None)
            case "adam":
                is_step = steps.on_optimizer(int(number))
            case "resume":
                steps.on_start(int(number))
            case _:
                is_step = steps.on_report(int(number))
        if is_step:
            found.append(f"{steps.count}:{'-' if steps.step is None else steps.step}")
    assert " ".join(found) == expected
    assert steps.resumed == resumed
