"""The agent, the keeper or a worker is killed: no process is left, and the log says why."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_elastic.workers.messages import (
    ExtendLease,
    GroupGone,
    KillGroup,
    LeaseRanOut,
    SignalGroup,
    StartGroup,
    WorkerEnded,
    WorkersRunning,
)
from pytest_elastic.workers.process_tree import is_zombie, start_time
from tests.integration.small_agent import AgentProcess, python_worker

# Starts a child, a child in a session of its own, and a grandchild that was forked twice and has a
# session of its own; each writes down who it is. All ignore what can be ignored.
FAMILY = """\
import os, signal, sys, time
def note():
    with open(f"/proc/self/stat", "rb") as stat:
        started = stat.read().rpartition(b")")[2].split()[19].decode()
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()} {started}\\n")
def live():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    note()
    time.sleep(1000)
if os.fork() == 0:
    live()
if os.fork() == 0:
    os.setsid()
    live()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    live()
live()
"""
FAMILY_SIZE = 4
# Each puts something into shared memory, and writes down how it is named there.
SHARING = {
    "multiprocessing": """\
import sys
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=4096)
open(sys.argv[1], "w").write(shared.name)
""",
    "torch": """\
import os, sys, torch
torch.multiprocessing.set_sharing_strategy("file_system")
shared = torch.zeros(1000).share_memory_()
(name,) = (name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_"))
open(sys.argv[1], "w").write(name)
""",
}
# The kill itself takes some 20 ms; this is for a machine that does other things too.
SOON_S = 30.0


class Family:
    """What a worker with its descendants wrote down about them."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "family.py"
        self.script.write_text(FAMILY)
        self.list = folder / "pids"

    def members(self) -> Sequence[tuple[int, int]]:
        """Return pid and start time of each."""
        if not self.list.exists():
            return []
        lines = self.list.read_text().splitlines()
        return [(int(pid), int(started)) for pid, started in (line.split() for line in lines)]

    def living(self) -> Sequence[int]:
        """Return those that still run."""
        return [
            pid
            for pid, started in self.members()
            if start_time(pid) == started and not is_zombie(pid)
        ]


@pytest.fixture
def family(tmp_path: Path) -> Family:
    """A worker's script that makes descendants of every kind."""
    return Family(tmp_path)


def start_family(agent: AgentProcess, family: Family, *, workers: int = 2) -> Sequence[int]:
    """Start workers with all their descendants; return the workers' own pids."""
    specs = [
        python_worker(
            [str(family.script), str(family.list)],
            cwd=str(family.script.parent),
            local_rank=local_rank,
        )
        for local_rank in range(workers)
    ]
    agent.send(StartGroup(round=1, workers=specs, start="exec"))
    running = agent.wait_for(WorkersRunning)
    agent.wait_until(lambda: len(family.living()) == FAMILY_SIZE * workers)
    return running.pids


@pytest.mark.parametrize("owner", SHARING)
@pytest.mark.parametrize(
    "end", ["worker returns", "group is killed", "agent is killed", "keeper is killed"]
)
def test_no_end_leaves_shared_memory(tmp_path: Path, owner: str, end: str) -> None:
    """What removes it outlives the workers for a moment, delays no round and is no stray."""
    note = tmp_path / "name"
    program = SHARING[owner] + ("" if end == "worker returns" else "import time; time.sleep(1000)")
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        worker = python_worker(["-c", program, str(note)], cwd=str(tmp_path))
        agent.send(StartGroup(round=1, workers=[worker], start="exec"))
        agent.wait_until(lambda: note.exists() and bool(note.read_text()))
        shared = Path("/dev/shm", note.read_text())
        if end == "agent is killed":
            agent.process.kill()
        elif end == "keeper is killed":
            os.kill(agent.keeper_pid, signal.SIGKILL)
            agent.wait_for_note("lost", str, within_s=SOON_S)
        else:
            if end == "group is killed":
                agent.send(KillGroup(round=1))
            assert agent.wait_for(GroupGone).strays == ()
        agent.wait_until(lambda: not shared.exists(), within_s=SOON_S)
        if end == "agent is killed":
            agent.wait_until(lambda: start_time(agent.keeper_pid) is None, within_s=SOON_S)


def test_a_helper_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """A resource tracker that hangs is waited for a few seconds only, with its round long gone."""
    program = SHARING["multiprocessing"] + (
        "import os, signal; from multiprocessing.resource_tracker import _resource_tracker as it\n"
        "os.kill(it._pid, signal.SIGSTOP); open(sys.argv[1], 'a').write(f' {it._pid}')"
    )
    note = tmp_path / "name"
    with AgentProcess(warm=False) as agent:
        worker = python_worker(["-c", program, str(note)], cwd=str(tmp_path))
        agent.send(StartGroup(round=1, workers=[worker], start="exec"))
        assert agent.wait_for(GroupGone).strays == ()
        name, pid = note.read_text().split()
        assert start_time(int(pid)) is not None
        agent.wait_until(lambda: start_time(int(pid)) is None, within_s=SOON_S)
    Path("/dev/shm", name).unlink()


def test_killing_a_group_leaves_no_descendant(family: Family) -> None:
    """KillGroup ends children, children with their own session, and what was forked twice."""
    with AgentProcess(warm=False) as agent:
        start_family(agent, family)
        agent.send(KillGroup(round=1))
        gone = agent.wait_for(GroupGone)
        assert family.living() == []
        assert {pid for pid, _ in family.members()} <= set(gone.killed)


def test_a_killed_agent_leaves_no_worker(family: Family) -> None:
    """The keeper outlives its agent, kills everything, and ends."""
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        start_family(agent, family)
        agent.process.kill()
        agent.wait_until(lambda: family.living() == [], within_s=SOON_S)
        agent.wait_until(lambda: start_time(agent.keeper_pid) is None, within_s=SOON_S)


def test_a_killed_keeper_leaves_no_worker(family: Family) -> None:
    """The agent inherits what was below the keeper, kills it, and then says that it is lost."""
    with AgentProcess(warm=False) as agent:
        start_family(agent, family)
        os.kill(agent.keeper_pid, signal.SIGKILL)
        reason = agent.wait_for_note("lost", str, within_s=SOON_S)
        assert family.living() == []
        assert reason.startswith("the keeper ended with -9")


def test_a_killed_worker_is_reported_and_its_children_stay_in_the_group(family: Family) -> None:
    """WorkerEnded names the signal; the group is gone only when its last process is."""
    with AgentProcess(warm=False) as agent:
        (leader,) = start_family(agent, family, workers=1)
        os.kill(leader, signal.SIGKILL)
        ended = agent.wait_for(WorkerEnded)
        assert (ended.pid, ended.exit_code, ended.was_out_of_memory) == (leader, -9, False)
        assert len(family.living()) == FAMILY_SIZE - 1
        assert not any(isinstance(report, GroupGone) for report in agent.reports)
        agent.send(KillGroup(round=1))
        agent.wait_for(GroupGone)
        assert family.living() == []


def test_a_group_that_ends_by_itself_is_gone_by_itself(tmp_path: Path) -> None:
    """GroupGone follows the last exit without an order, and again when one comes after it."""
    with AgentProcess(warm=False) as agent:
        agent.send(StartGroup(round=3, workers=[python_worker(["-c", "1/1"], cwd=str(tmp_path))]))
        assert agent.wait_for(WorkerEnded).exit_code == 0
        assert agent.wait_for(GroupGone) == GroupGone(round=3, killed=(), strays=())
        agent.send(KillGroup(round=3))
        assert agent.wait_for(GroupGone).round == 3


def test_a_frozen_agent_loses_its_workers_when_the_lease_ends(family: Family) -> None:
    """The keeper kills on its own clock, early enough that all are dead when the lease is over."""
    # A margin that is enough also where the processor is shared with many others.
    with AgentProcess(warm=False, kill_margin_s=2.0) as agent:
        start_family(agent, family)
        until = agent.loop.now() + 3.0
        agent.send(ExtendLease(until=until))
        agent.ask(freeze=True)
        try:
            agent.wait_until(lambda: family.living() == [], within_s=SOON_S)
            assert agent.loop.now() <= until
        finally:
            agent.process.send_signal(signal.SIGCONT)
        assert agent.wait_for(LeaseRanOut).round == 1
        agent.wait_for(GroupGone)


def test_an_extended_lease_keeps_workers(family: Family) -> None:
    """A lease counts from its newest extension, and None is no deadline at all."""
    with AgentProcess(warm=False, kill_margin_s=0.05) as agent:
        start_family(agent, family, workers=1)
        began = agent.loop.now()
        agent.send(ExtendLease(until=began + 1.0))
        agent.send(ExtendLease(until=None))
        agent.send(ExtendLease(until=began + 1.5))
        agent.wait_for(LeaseRanOut)
        assert agent.loop.now() - began > 1.4
        agent.wait_for(GroupGone)


def test_no_group_starts_after_its_lease(tmp_path: Path) -> None:
    """A round whose lease has run out when it is to start is reported, and not started."""
    with AgentProcess(warm=False) as agent:
        agent.send(ExtendLease(until=agent.loop.now()))
        agent.send(StartGroup(round=5, workers=[python_worker(["-c", "1"], cwd=str(tmp_path))]))
        assert agent.wait_for(LeaseRanOut).round == 5
        assert agent.wait_for(GroupGone).round == 5
        assert not any(isinstance(report, WorkersRunning) for report in agent.reports)


def test_the_dead_agents_door_tells_that_its_workers_are_gone(family: Family) -> None:
    """The tombstone is shown on the agent's port, after the last worker's death and not before."""
    with AgentProcess(warm=False, linger_s=30.0) as agent:
        start_family(agent, family)
        answer = {"kind": "tombstone", "incarnation": "i7"}
        agent.ask(keep_listener=answer)
        port = agent.wait_for_note("port", int)
        with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as early:
            early.settimeout(0.2)
            with pytest.raises(TimeoutError):
                early.recv(1)
            agent.process.kill()
            # Accepted by nobody while the agent lived: it is answered with the others.
            early.settimeout(SOON_S)
            assert read_frame(early) == answer
        assert family.living() == []
        with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as late:
            late.sendall(b"who is there?")
            assert read_frame(late) == answer
        os.kill(agent.keeper_pid, signal.SIGKILL)


def test_the_tombstone_is_shown_for_a_while_only(tmp_path: Path) -> None:
    """After `linger_s` the keeper ends and the port is refused."""
    with AgentProcess(warm=False, linger_s=0.2) as agent:
        agent.ask(keep_listener={"kind": "tombstone"})
        port = agent.wait_for_note("port", int)
        agent.process.kill()
        agent.process.wait()
        agent.wait_until(lambda: start_time(agent.keeper_pid) is None, within_s=SOON_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=SOON_S)


def test_signals_go_to_leaders_groups_or_all(tmp_path: Path) -> None:
    """A leader alone can be asked to end, its group with it, or everything wherever it fled."""
    script = tmp_path / "listeners.py"
    script.write_text(LISTENERS)
    heard = tmp_path / "heard"
    heard.mkdir()
    with AgentProcess(warm=False) as agent:
        spec = python_worker([str(script), str(heard)], cwd=str(tmp_path))
        agent.send(StartGroup(round=1, workers=[spec]))
        agent.wait_until(lambda: sorted(os.listdir(heard)) == ["child", "fled", "leader"])
        for number, to, who in (
            (signal.SIGUSR1, "leaders", {"leader"}),
            (signal.SIGUSR2, "groups", {"leader", "child"}),
            (signal.SIGHUP, "all", {"leader", "child", "fled"}),
        ):
            agent.send(SignalGroup(round=1, signal=number, to=to))
            agent.wait_until(
                lambda number=number, who=who: (
                    {  # type: ignore[misc]
                        name
                        for name in os.listdir(heard)
                        if str(int(number)) in words(heard / name)
                    }
                    == who
                )
            )
        agent.send(SignalGroup(round=2, signal=signal.SIGKILL, to="all"))
        agent.send(KillGroup(round=1))
        assert agent.wait_for(WorkerEnded).exit_code == -9
        assert words(heard / "fled") == [str(int(signal.SIGHUP))]


LISTENERS = """\
import os, signal, sys
def listen(name):
    path = os.path.join(sys.argv[1], name)
    def heard(number, frame):
        with open(path, "a") as file:
            file.write(f"{number} ")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, heard)
    open(path, "w").close()
    while True:
        signal.pause()
if os.fork() == 0:
    listen("child")
if os.fork() == 0:
    os.setsid()
    listen("fled")
listen("leader")
"""


def test_a_held_group_stands_still_and_goes_on(tmp_path: Path) -> None:
    """SIGSTOP to all stops every process of the group; SIGCONT lets it go on."""
    script = tmp_path / "counter.py"
    script.write_text("while True: open('count', 'a').write('x')")
    count = tmp_path / "count"

    def size() -> int:
        return count.stat().st_size if count.exists() else 0

    with AgentProcess(warm=False) as agent:
        agent.send(StartGroup(round=1, workers=[python_worker([str(script)], cwd=str(tmp_path))]))
        pid = agent.wait_for(WorkersRunning).pids[0]
        agent.wait_until(lambda: size() > 0)
        agent.send(SignalGroup(round=1, signal=signal.SIGSTOP, to="all"))
        agent.wait_until(lambda: state_of(pid) == "T")
        held = size()
        agent.send(SignalGroup(round=1, signal=signal.SIGCONT, to="all"))
        agent.wait_until(lambda: size() > held)
        agent.send(KillGroup(round=1))
        agent.wait_for(GroupGone)


def test_workers_that_are_killed_before_they_run_are_said_to_have_started(tmp_path: Path) -> None:
    """Once, and whatever ends them: who reads of an end finds the start."""
    with AgentProcess(warm=False) as agent:
        for round_ in range(1, 4):
            workers = [python_worker(["-c", "1"], cwd=str(tmp_path), local_rank=n) for n in (0, 1)]
            agent.send(StartGroup(round=round_, workers=workers))
            agent.send(KillGroup(round=round_))
            agent.wait_for(GroupGone)
            ends = [each for each in agent.reports if isinstance(each, WorkerEnded)]
            (running,) = [each for each in agent.reports if isinstance(each, WorkersRunning)]
            assert (running.round, set(running.pids)) == (round_, {each.pid for each in ends})
            agent.reports.clear()


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A missing program or folder is a WorkerEnded with the reason, and no WorkersRunning."""
    good = python_worker(["-c", "1"], cwd=str(tmp_path), local_rank=0)
    for broken, words_of_it in (
        ({"command": ["/nonexistent/program"]}, "No such file or directory: /nonexistent/program"),
        ({"cwd": "/nonexistent"}, "No such file or directory: /nonexistent"),
        ({"stdout": "/nonexistent/log"}, "No such file or directory: /nonexistent/log"),
    ):
        fields = {"command": [sys.executable, "-c", "1"], "cwd": str(tmp_path), **broken}
        bad = type(good)(local_rank=1, rank=1, environ={}, **fields)  # type: ignore[arg-type]
        with AgentProcess(warm=False) as agent:
            agent.send(StartGroup(round=1, workers=[good, bad]))
            agent.wait_for(GroupGone)
            ends = {r.local_rank: r for r in agent.reports if isinstance(r, WorkerEnded)}
            assert ends[0].start_error == ""
            assert (ends[1].exit_code, ends[1].start_error) == (127, words_of_it)
            assert not any(isinstance(report, WorkersRunning) for report in agent.reports)


def test_workers_get_their_streams_and_nothing_else(tmp_path: Path) -> None:
    """A worker has descriptors 0 to 2, its own session, and appends to its log."""
    log = tmp_path / "out.log"
    log.write_text("before\n")
    code = "import os; print(os.listdir('/proc/self/fd'), os.getsid(0) == os.getpid())"
    with AgentProcess(warm=False) as agent:
        spec = python_worker(["-c", code], cwd=str(tmp_path), stdout=str(log))
        agent.send(StartGroup(round=1, workers=[spec]))
        agent.wait_for(GroupGone)
    # The fourth is that of the folder that is being listed.
    assert log.read_text() == "before\n['0', '1', '2', '3'] True\n"


def test_a_keeper_can_be_dismissed_before_it_is_ready(tmp_path: Path) -> None:
    """A launcher that ends at once does not wait for what is imported, and leaves nothing."""
    (tmp_path / "never_there.py").write_text("import time\ntime.sleep(1000)\n")
    script = (
        "import os\n"
        "from pytest_elastic.loop import Loop\n"
        "from pytest_elastic.workers.keeper_client import Keeper\n"
        "from pytest_elastic.workers.process_tree import children_of\n"
        "loop = Loop()\n"
        "keeper = Keeper(loop, on_report=print, on_lost=print)\n"
        "keeper.start(kill_margin_s=0.2, preload=['never_there'])\n"
        "print(keeper.dismiss(timeout_s=60.0), children_of(os.getpid()))\n"
        "print(keeper.dismiss())\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True []\nTrue\n", "")


def test_an_environment_that_is_no_text_reaches_the_worker(tmp_path: Path) -> None:
    """Variables are bytes to the system, and stay what they are."""
    code = "import os; os._exit(7 if os.environb[b'ODD'] == b'\\xff\\xfe' else 1)"
    spec = python_worker(["-c", code], cwd=str(tmp_path), environ={"ODD": os.fsdecode(b"\xff\xfe")})
    with AgentProcess(warm=False) as agent:
        agent.send(StartGroup(round=1, workers=[spec]))
        assert agent.wait_for(WorkerEnded).exit_code == 7


def read_frame(sock: socket.socket) -> object:
    """Read one frame of a channel."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        more = sock.recv(4096)
        assert more, f"the connection ended after {data!r}"
        data += more
    return json.loads(data[4:])


def words(path: Path) -> list[str]:
    """Return the words of a file."""
    return path.read_text().split()


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
