"""A command of the scenario's author, run on nodes: whatever no fault of ours does."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    within,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Listed, Seconds, Select, Text
from elastic_harness.scenario.selectors import parse_selector, resolve_nodes

__all__ = ["RunCommand"]

_DEFAULT_S: Final = 10.0


def _command(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not value or not value[0].strip():
        raise ValueError("a command is text for the shell, or a list of words: this one is empty")
    return value


class RunCommand(Fault):
    """A command runs on a node, in its launcher's surroundings, and must end with exit code 0.

    It is in force once it has ended: a rank that the entry is pinned to is held as long, and what
    comes `after` comes after it. `command` is a list of words, or text for `/bin/sh`; `node` says
    where (the store host). What it prints stands in the node's logs, in a file named after the
    entry. Stands for whatever its author makes it do: a checkpoint torn in two, a file removed, a
    configuration changed. Does not stand for: anything that its exit code does not show.
    """

    name = "run"
    layer = "node"
    proof = "the exit code of this very command is 0"
    shorthand: ClassVar[str | None] = "command"

    command: Annotated[str | Listed[Text], AfterValidator(_command)]
    node: Select = parse_selector("store host")
    within: Seconds = Field(default=_DEFAULT_S, gt=0)

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        return Targets(nodes=resolve_nodes(self.node, situation, stream=stream))

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        words = ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else self.command
        commands = {
            node.name: context.launchers.run_command(node.name, words, name=id)
            for node in targets.nodes
        }
        for name, command in commands.items():
            code = yield from within(command, self.within, f"the command on {name}")
            if code != 0:
                raise FaultImpossible(f"the command on {name} ended with exit code {code}")
        return Evidence(
            text=f"exit code 0 on {', '.join(commands)}",
            facts={"exit_codes": dict.fromkeys(commands, 0)},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        """End what is still running of it."""
        context.launchers.end_commands(id)
        yield from ()
        return "ended"
