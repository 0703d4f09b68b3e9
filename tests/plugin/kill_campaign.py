"""SIGKILL for pytest, or for a part of its cluster, at moments that a seed draws.

    python -m tests.plugin.kill_campaign --times 100 --seed 1
    python -m tests.plugin.kill_campaign --times 30 --user 65534

With `--user`, root has everything run by that user (who needs `/dev/net/tun` and the interpreter),
so that nodes are made in user namespaces, and looks for what is left with its own eyes.

Each time a pytest with a job on two nodes is started. Once a drawn part of it is there, a drawn
time passes, and a drawn part is killed. A pytest that was not the victim must end by itself, and
not with an internal error. Then no process, namespace, TUN device, mount, control group, socket,
shared memory or folder may be left, without anybody's having to start again.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_harness import leaks
from elastic_harness.cluster import process_table

from tests.plugin.place import LIMIT_S, Place, scenario

__all__ = ["VICTIMS", "Kill", "draw_kill", "play", "prepare"]

VICTIMS = ("pytest", "supervisor", "server", "switch", "node init", "launcher")

# What happens after a part has come: the next one, or, after the last one, the job and its end.
_LONGEST_S = 1.5
_LOOK_AGAIN_S = 0.03
# What a supervisor has to end a cluster that is being started on a busy machine.
_GONE_WITHIN_S = 60.0

STEPS = """
    import time
    for _ in range(20):
        time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Who is killed, and when: so many seconds after a part has come."""

    seed: int
    cluster: str
    victim: str
    after: str
    delay_s: float

    def __str__(self) -> str:
        when = f"{self.delay_s:.2f} s after {self.after}"
        return f"seed {self.seed}: {self.victim} of a {self.cluster} cluster, {when}"


def draw_kill(seed: int) -> Kill:
    """Draw one kill; a process cluster has no switch, and pytest is there before anything else."""
    chance = random.Random(seed)
    cluster = chance.choice(("namespace", "namespace", "process"))
    parts = [part for part in VICTIMS if cluster == "namespace" or part != "switch"]
    victim = chance.choice(parts)
    after = chance.choice(parts) if victim == "pytest" else victim
    return Kill(
        seed=seed,
        cluster=cluster,
        victim=victim,
        after=after,
        delay_s=chance.uniform(0, _LONGEST_S),
    )


def prepare(place: Place) -> None:
    """Write what is run."""
    place.add_ini()
    place.add("steps.py", STEPS)
    place.add("steps.elastic.yaml", scenario("steps", "limit: 6s", script="steps.py"))


def play(kill: Kill, place: Place) -> tuple[str, list[str]]:
    """Start pytest, kill, and look; returns what was hit, and what is wrong afterwards."""
    before = leaks.snapshot()
    process = place.start("steps.elastic.yaml", f"--elastic-cluster={kill.cluster}", "-q")
    problems: list[str] = []
    try:
        hit = _kill_after(kill, process)
        out = _wait_for_the_end(process, problems, was_killed=hit == "pytest")
        if "INTERNALERROR" in out or (hit != "pytest" and process.returncode not in {0, 1}):
            problems.append(f"pytest ended with {process.returncode}:\n{out}")
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
    problems += leaks.leaks_since(before, within_s=_GONE_WITHIN_S)
    return hit, problems


def _kill_after(kill: Kill, process: subprocess.Popen[str]) -> str:
    """Wait for the moment, and kill; returns who it was in the end, "nobody" if all was over."""
    pidfd = os.pidfd_open(process.pid)
    try:
        while kill.after not in find_victims(process.pid):
            if select.select([pidfd], [], [], _LOOK_AGAIN_S)[0]:
                return "nobody"
        if select.select([pidfd], [], [], kill.delay_s)[0]:
            return "nobody"
    finally:
        os.close(pidfd)
    found = find_victims(process.pid)
    # Where the victim is not there any more, it is pytest's turn.
    victim = kill.victim if kill.victim in found else "pytest"
    try:
        os.kill(found[victim], signal.SIGKILL)
    except ProcessLookupError:
        return "nobody"
    return victim


def find_victims(pytest_pid: int) -> dict[str, int]:
    """Return a process of each kind that there is, by its place in the tree.

    pytest has one child of that name, the supervisor, whose one child is the server. Below that
    are the switch, if there is one, and the first process of each node, which has the launcher.
    """
    found = {"pytest": pytest_pid}
    children: dict[int, list[process_table.ProcessRow]] = {}
    for row in process_table.descendants(pytest_pid):
        children.setdefault(row.ppid, []).append(row)
    parent = pytest_pid
    for part in ("supervisor", "server"):
        named = [row.pid for row in children.get(parent, []) if _is_of_a_cluster(row.pid)]
        if not named:
            return found
        found[part] = parent = named[0]
    for row in children.get(parent, []):
        # The switch lives in the server's own pid namespace, the first process of a node in its
        # own, or, without namespaces, where everybody does.
        if len(row.pids) == 2:
            found["switch"] = row.pid
        else:
            found["node init"] = row.pid
        for launcher in children.get(row.pid, []):
            found["launcher"] = launcher.pid
    return found


def _is_of_a_cluster(pid: int) -> bool:
    return any("cluster.server.supervisor" in word for word in process_table.command_of(pid))


def _wait_for_the_end(
    process: subprocess.Popen[str], problems: list[str], *, was_killed: bool
) -> str:
    """Wait until pytest has ended by itself, or by us; returns what it said."""
    try:
        out, _ = process.communicate(timeout=60 if was_killed else LIMIT_S)
    except subprocess.TimeoutExpired:
        problems.append("pytest did not end")
        process.send_signal(signal.SIGABRT)
        out, _ = process.communicate(timeout=LIMIT_S)
        problems.append(out)
    return out


def _give(folder: Path, user: int) -> None:
    """Let a user have a folder and all that is in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


def main(arguments: Sequence[str]) -> int:
    """Kill again and again, and say what was left."""
    parser = argparse.ArgumentParser(description="Kill parts of the harness and look what is left.")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the others count on")
    parser.add_argument("--user", type=int, help="the number of who runs it, instead of us")
    options = parser.parse_args(arguments)
    hits: dict[str, int] = {}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        home = {"HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        environ = home if options.user is not None else {}
        place = Place(Path(folder), environ, user=options.user, preload="torch")
        prepare(place)
        if options.user is not None:
            _give(place.folder, options.user)
        for seed in range(options.seed, options.seed + options.times):
            kill = draw_kill(seed)
            begin = time.monotonic()
            hit, problems = play(kill, place)
            hits[hit] = hits.get(hit, 0) + 1
            bad += bool(problems)
            verdict = "\n    ".join(["LEFT OR WRONG", *problems]) if problems else "clean"
            line = f"{kill}; hit {hit}; {time.monotonic() - begin:.1f} s: {verdict}"
            print(line, flush=True)  # noqa: T201 (a campaign says how far it is)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(hits.items()))
    print(f"{options.times} kills ({counted}): {bad} not clean")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
