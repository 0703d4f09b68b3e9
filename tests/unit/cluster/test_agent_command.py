"""A command that runs an agent: what it answers, and what is said of one that does not."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.machines.agent_command import AgentCommand
from elastic_harness.cluster.machines.facts import MachineFacts, facts_of_this_machine

TOLD = json.dumps(asdict(facts_of_this_machine("")))
FACTS = MachineFacts.decode(TOLD)


def test_what_a_login_script_prints_is_no_answer() -> None:
    """The facts are; then the command waits for its order, and reads nothing else."""
    answer = shlex.quote(TOLD)
    script = f"read code; echo welcome; echo 5; echo {answer}; read order; test $order = work"
    command = AgentCommand(["sh", "-c", script])
    command.ask(b"code\n")
    assert command.wait_for_answer(60.0, since=time.monotonic()) == ""
    assert command.facts == FACTS
    assert command.give(b"work\n")
    assert command.finish() == (0, "")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("read code; exit 3", "the command ended with 3 and told nothing"),
        ("exit 3", "the command ended with 3 and told nothing"),
        ("read code; echo no >&2; echo route >&2", "no\nroute"),
        ("sleep 600; exit 0", "no answer within 0.1 s"),
    ],
)
def test_a_command_without_an_answer_says_why(script: str, message: str) -> None:
    """Also one that reads nothing of what is larger than a pipe; nothing of it is left."""
    command = AgentCommand(["sh", "-c", script])
    command.ask(b"x" * 1_000_000 + b"\n")
    limit_s = 0.1 if "sleep" in script else 60.0
    assert command.wait_for_answer(limit_s, since=time.monotonic()) == message
    assert command.facts is None
    assert process_table.row_of(command.process.pid) is None


def test_one_that_has_ended_is_given_no_order() -> None:
    """The placement starts another one."""
    command = AgentCommand(["sh", "-c", f"echo {shlex.quote(TOLD)}"])
    command.ask(b"")
    assert command.wait_for_answer(60.0, since=time.monotonic()) == ""
    command.process.wait()
    assert not command.give(b"work\n")
    command.finish()
