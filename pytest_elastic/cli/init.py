"""`pytest-elastic init train.py`: a first test, scenario and CI workflow for a project."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence

from pytest_elastic.cli.program_parser import ProgramParser
from pytest_elastic.errors import UsageError

__all__ = ["build_parser", "main"]

_TEST = '''\
"""What becomes of {script} when a worker dies. Run it: pytest {test}"""

import pytest


@pytest.mark.elastic(nodes=2, max_restarts=3)
def test_a_killed_worker_costs_a_few_steps(elastic_job, elastic_chaos):
    """The rank is held after step {step} until the kill has acted."""
    job = elastic_job({words}, working_copy={{"leave_out": ["checkpoints"]}})
    elastic_chaos.at(step={step}, rank=1).kill("rank 1")
    assert job.wait().succeeded
    assert job.restarts == 1
    assert job.steps_lost <= {step}  # at most those since the last checkpoint


@pytest.mark.ranks(2)
def test_ranks_agree(rank):
    """A distributed unit test: its body runs on two ranks of a process group that is ready."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(3) * rank
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]
'''
_SCENARIO = """\
# A spot machine is reclaimed: SIGTERM, and five seconds later all its processes are killed.
version: 1
id: preempted
title: A preempted node leaves in time, and the job goes on without it
job:
  script: {script}
  args: {args}
  max_restarts: 3
  working_copy: {{leave_out: [checkpoints]}}   # each run has a copy of this folder, to write into
nodes: {{initial: 3, min: 2, max: 3}}
timeline:
  - at: {{step: {step}, rank: 2}}
    preempt: {{node: n3, notice: 5s, by: crash}}
expect:
  finally:
    - job: succeeded
    - steps_lost: {{at_most: {step}}}     # 1, if the script saves when SIGTERM comes
"""
_WORKFLOW = """\
name: elastic
on: [push, pull_request]
jobs:
  elastic:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.11"}}
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: pip install pytest-elastic
      - run: pytest-elastic doctor
      - run: pytest tests/elastic --elastic-artifacts=elastic-runs
      - run: pytest-elastic chaos --artifacts=elastic-runs {command}
      - uses: actions/upload-artifact@v4
        if: failure()
        with: {{name: elastic-runs, path: elastic-runs}}
"""
_STEP = 5


def build_parser() -> ProgramParser:
    """Return the parser of the command line."""
    parser = ProgramParser(
        prog="pytest-elastic init",
        description="Write a first test, a first scenario and a CI workflow for a training script. "
        "Nothing that is there is replaced.",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script, below this folder")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the files, and say what to do with them; nothing that is there is replaced."""
    given = build_parser().read(argv, rest="arguments")
    if not os.path.isfile(given.script):
        raise UsageError(f"there is no script {given.script!r}")
    script = os.path.relpath(given.script)
    if script.startswith(".."):
        raise UsageError(
            f"{given.script} is not below {os.getcwd()}", hint="Call init in the project's folder."
        )
    files = _files(script, given.arguments)
    for path in files:
        if os.path.lexists(path):
            raise UsageError(f"{path} is there already", hint="Remove it, or edit it by hand.")
    for path, text in files.items():
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        print(f"wrote {path}")
    print("run them:      pytest tests/elastic")
    print(f"or, for more:  pytest-elastic chaos {' '.join([script, *given.arguments])}")
    return 0


def _files(script: str, arguments: Sequence[str]) -> Mapping[str, str]:
    folder = os.path.join("tests", "elastic")
    name = re.sub(r"\W+", "_", os.path.splitext(os.path.basename(script))[0])
    test = os.path.join(folder, f"test_{name}.py")
    seen_from_there = os.path.relpath(script, folder)
    return {
        test: _TEST.format(
            script=script,
            test=test,
            step=_STEP,
            words=", ".join(json.dumps(word) for word in (seen_from_there, *arguments)),
        ),
        os.path.join(folder, "preempted.elastic.yaml"): _SCENARIO.format(
            script=json.dumps(seen_from_there), args=json.dumps(list(arguments)), step=_STEP
        ),
        os.path.join(".github", "workflows", "elastic.yml"): _WORKFLOW.format(
            command=" ".join([script, *arguments])
        ),
    }
