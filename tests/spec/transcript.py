"""Transcripts: what is done to a world, and everything that is said because of it.

A file begins with prose (lines with `#`); a line with `>` does something to the world; the lines
below it are what followed: messages (`n2 -> n1  workers_gone round=1`), what agents were told
(`n2 |  start_workers round=1`) and facts (`n1 *  round_sealed round=1`). Left out are
beats, everything about a lease that is extended, and questions who leads.

    python -m tests.spec.transcript          writes all files again

Commit a changed file only when you understand each changed line: it is a changed behaviour.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elastic_simulation.trace import QUIET, described
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports

__all__ = ["FOLDER", "replay"]

FOLDER = Path(__file__).parent / "transcripts"

# What a line of a specification does not need to say beside what a told run leaves out.
_QUIET = QUIET | {"meant_for", "idle_rounds", "lease_s", "is_tombstone", "has_end"}


def _is_left_out(message: object) -> bool:
    match message:
        case m.Question(term=None, leader=None) | m.Heartbeat():
            return True
        case m.Answer():
            return not (message.is_granted or message.reason)
        case _:
            return False


def replay(script: Iterable[str]) -> list[str]:
    """Do what a script's `>` lines say; return prose, commands, and what followed each."""
    out: list[str] = []
    reader: _Reader | None = None
    for line in script:
        if line.startswith("#") or not line.strip():
            if line.strip() or (out and out[-1]):
                out.append(line.rstrip())
        elif line.startswith(">"):
            out.append(line.rstrip())
            words = line[1:].split()
            if words[0] == "nodes":
                reader = _Reader(new_world(settings(words[1], **_options(words[2:]))))
                continue
            assert reader is not None, "a script begins with `> nodes MIN:MAX`"
            reader.act(words)
            out += reader.news()
    return out


def _options(words: Iterable[str]) -> dict[str, Any]:
    """Read `max_restarts=0 quorum=majority`."""
    read = {key: value for key, _, value in (word.partition("=") for word in words)}
    return {key: int(value) if value.isdecimal() else value for key, value in read.items()}


class _Reader:
    """Performs commands, and says what has happened since it was last asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._told: dict[str, int] = {}
        self._sent = 0
        self._emitted = 0

    def act(self, words: list[str]) -> None:
        """Perform one command, and let a moment pass in which everything follows."""
        verb, names = words[0], words[1:]
        world = self.world
        simple: dict[str, Callable[[str], None]] = {
            "fail": world.fail,
            "kill-agent": world.kill_agent,
            "crash": world.crash,
            "cut-power": world.cut_power,
            "reset": world.break_connection,
            "succeed": lambda name: world.agent(name).succeed(),
            "drain": lambda name: world.agent(name).drain(grace_s=5.0),
            "isolate": lambda name: world.isolate(name, sorted(world.processes)),
        }
        if verb == "start":
            world.start(*names)
        elif verb == "heal":
            world.heal()
        elif verb == "part":
            for name in names[0].split(","):  # `part n1,n2 n3 n4`: a split in halves
                world.isolate(name, names[1:])
        elif verb == "wait":
            world.run(float(names[0].removesuffix("s")))
            return
        else:
            for name in names:
                simple[verb](name)
        world.run(0.2)

    def news(self) -> list[str]:
        """Return the lines of what happened since the last call, in order of time."""
        lines: list[tuple[float, int, str]] = []
        world = self.world
        for at, source, target, message in world.sent[self._sent :]:
            if not _is_left_out(message):
                lines.append((at, 0, f"{source} -> {target}  {described(message, _QUIET)}"))
        self._sent = len(world.sent)
        for at, name, event in world.events[self._emitted :]:
            lines.append((at, 1, f"{name} *  {described(event, _QUIET)}"))
        self._emitted = len(world.events)
        for name, process in world.processes.items():
            notices = process.agent.timed_notices
            for at, notice in notices[self._told.get(name, 0) :]:
                if not isinstance(notice, ports.LeaseExtended):
                    lines.append((at, 2, f"{name} |  {described(notice, _QUIET)}"))
            self._told[name] = len(notices)
        lines.sort(key=lambda line: line[:2])
        return [f"{at:9.4f}  {text}" for at, _, text in lines]


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.txt")):
        text = "\n".join(replay(path.read_text(encoding="utf-8").splitlines())) + "\n"
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.name}: {text.count(chr(10))} lines\n")
