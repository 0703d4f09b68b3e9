"""The probe in real processes: what it sees, and that it is not seen itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from elastic_harness.history.events import (
    GroupFormed,
    ParametersHashed,
    RankHeld,
    RankReleased,
    ResumeObserved,
    SamplesDrawn,
    StepCompleted,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.observe.observer import PROBE_FOLDER, Observer, probe_environ

from pytest_elastic.events.model import Event, Record, WorkersHeld
from pytest_elastic.events.sinks import make_sink
from pytest_elastic.loop import Loop
from pytest_elastic.workers.messages import GroupGone, StartGroup, WorkerEnded, WorkersRunning
from pytest_elastic.workers.spec import WorkerSpec
from tests.integration.small_agent import AgentProcess

E = TypeVar("E", bound=Event)

DEADLINE_S = 60.0
WORKER = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29999",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "OMP_NUM_THREADS": "1",
}


class Bench:
    """An observer and the processes it observes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.history = History()
        self.path = str(folder / "s")
        self.processes: list[subprocess.Popen[str]] = []
        self._observer: Observer | None = None

    @property
    def observer(self) -> Observer:
        """The observer, made when it is first asked for."""
        return self._observer or self.observe()

    def observe(
        self, *, samples: bool = False, hashes: bool = False, hold_s: float = 30.0
    ) -> Observer:
        """Begin to observe with these settings."""
        self._observer = Observer(
            self.loop,
            self.path,
            self._record,
            hash_parameters=hashes,
            observe_samples=samples,
            hold_limit_s=hold_s,
        )
        return self._observer

    def _record(self, record: Record) -> None:
        self.history.append(record)

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a worker, with the probe in it."""
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {**probe_environ("n1", self.path, plain), **WORKER, **more}

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        """Start a worker."""
        return self.start_command([sys.executable, self.write(script)], self.environ(**more))

    def start_command(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
        """Start anything, once somebody listens."""
        if self._observer is None:
            self.observe()
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def write(self, script: str) -> str:
        """Write a script and return its path."""
        path = self.folder / f"script{len(list(self.folder.glob('*.py')))}.py"
        path.write_text(textwrap.dedent(script))
        return str(path)

    def seen(self, kind: type[E]) -> list[Entry[E]]:
        """Return what was seen so far."""
        return self.history.of_kind(kind)

    def until(self, is_so: Callable[[], object]) -> None:
        """Serve the loop until something is so."""
        deadline = self.loop.now() + DEADLINE_S
        while not is_so():
            assert self.loop.now() < deadline, f"not within {DEADLINE_S} s; {self.told()}"
            self.loop.run_once(0.1)

    def until_all_ended(self) -> list[str]:
        """Wait for every process and return what each printed."""
        self.until(lambda: all(process.poll() is not None for process in self.processes))
        self.until(lambda: not self.observer.live_workers)
        return [process.communicate(timeout=DEADLINE_S)[0] for process in self.processes]

    def told(self) -> str:
        """Return the history's kinds, for messages."""
        return " ".join(entry.event.kind for entry in self.history)

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=DEADLINE_S)
        self.observer.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_worker_says_hello_before_its_first_line_and_goodbye_at_its_end(bench: Bench) -> None:
    """Who it is comes from the environment, its pid and start from the kernel."""
    process = bench.start("print('first line')", RANK="3", WORLD_SIZE="4", PYTEST_ELASTIC_ROUND="7")
    bench.until_all_ended()
    (hello,) = bench.seen(WorkerHello)
    assert hello.event.pid == process.pid
    assert hello.event.start_time > 0
    assert (hello.event.rank, hello.event.world_size, hello.event.round) == (3, 4, 7)
    assert (hello.event.restart_count, hello.event.max_restarts) == (0, 3)
    assert (hello.node, hello.record.run_id, hello.record.source) == ("n1", "job", "worker")
    assert hello.event.argv[-1].endswith(".py")
    assert bench.told().split() == ["worker_hello", "worker_finished", "worker_gone"]


def test_a_worker_that_is_killed_is_gone_without_goodbye(bench: Bench) -> None:
    """The kernel says so, whatever the worker could not say; `os._exit` is the same."""
    bench.start("import os; os.kill(os.getpid(), 9)")
    bench.start("import os; os._exit(3)", LOCAL_RANK="1", RANK="1")
    bench.until_all_ended()
    assert len(bench.seen(WorkerGone)) == 2
    assert not bench.seen(WorkerFinished)


def test_the_probe_leaves_next_to_nothing_in_a_worker(bench: Bench, tmp_path: Path) -> None:
    """No module but its own, no folder on the path, no PYTHONPATH for the children."""
    script = """
        import os, sys
        print(*sorted(sys.modules), sep=" ")
        print(*sys.path[1:], sep=" ")
        print(*sorted(os.environ), sep=" ")
        print(os.open("/dev/null", os.O_RDONLY))
    """
    plain = {k: v for k, v in bench.environ().items() if k not in ("RANK", "PYTHONPATH")}
    bench.start(script)
    bench.start_command([sys.executable, bench.write(script)], plain)
    watched, unwatched = bench.until_all_ended()
    modules, path, environ, descriptor = watched.splitlines()
    modules0, path0, environ0, descriptor0 = unwatched.splitlines()
    extra = set(modules.split()) - set(modules0.split())
    assert extra <= {
        "__future__",
        "_socket",
        "select",
        "fcntl",
        "_collections",
        "_json",
        "atexit",
        "time",
        "elastic_probe",
        "elastic_probe_torch",
    }
    assert path == path0
    assert descriptor == descriptor0
    assert set(environ.split()) - set(environ0.split()) == {"RANK", "ELASTIC_PROBE_WORKER"}


def test_in_a_process_that_is_no_worker_only_the_variable_stays(bench: Bench) -> None:
    """A launcher keeps PYTHONPATH for its workers, and shows no other sign."""
    script = """
        import os, sys
        print(*sorted(sys.modules))
        print(*sys.path[1:])
        print(os.environ.get("PYTHONPATH"))
    """
    watched = {k: v for k, v in bench.environ().items() if k != "RANK"}
    plain = {k: v for k, v in watched.items() if k != "PYTHONPATH"}
    path = bench.write(script)
    bench.start_command([sys.executable, path], watched)
    bench.start_command([sys.executable, path], plain)
    with_probe, without = (text.splitlines() for text in bench.until_all_ended())
    assert with_probe[:2] == without[:2]
    assert with_probe[2] == PROBE_FOLDER
    assert not bench.seen(WorkerHello)


@pytest.mark.parametrize("rank", ["0", None])
def test_the_sitecustomize_that_would_have_run_runs(bench: Bench, rank: str | None) -> None:
    """The user's own is found behind ours, in workers and elsewhere."""
    own = bench.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__")
    environ = bench.environ()
    environ["PYTHONPATH"] += os.pathsep + str(own)
    if rank is None:
        del environ["RANK"]
    script = bench.write("import os, sys; print(mine, sys.modules['sitecustomize'].__file__)")
    bench.start_command([sys.executable, script], environ)
    (text,) = bench.until_all_ended()
    assert text.split() == [str(own / "sitecustomize.py")] * 2
    assert len(bench.seen(WorkerHello)) == (rank is not None)


def test_children_of_a_worker_are_no_workers(bench: Bench) -> None:
    """Forks, spawned children and programs carry the same RANK and say nothing."""
    bench.start(
        """
        import multiprocessing, os, subprocess, sys

        def work(queue):
            queue.put(1)

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                assert queue.get(timeout=30) == 1
                child.join(30)
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            probed = {**os.environ, "PYTHONPATH": os.environ["PROBE"]}
            subprocess.run([sys.executable, "-c", "pass"], env=probed, check=True)
            del probed["ELASTIC_PROBE_WORKER"]
            subprocess.run([sys.executable, "-c", "pass"], env=probed, check=True)
            print("done")
    """,
        PROBE=PROBE_FOLDER,
    )
    (text,) = bench.until_all_ended()
    assert text.strip() == "done"
    assert len(bench.seen(WorkerHello)) == 1
    assert len(bench.seen(WorkerFinished)) == 1


def test_a_program_below_a_shell_is_the_worker(bench: Bench) -> None:
    """The first Python that says hello is it, whatever started it."""
    bench.observe()
    script = bench.write("pass")
    bench.start_command(["sh", "-c", f"{sys.executable} {script}; true"], bench.environ())
    bench.until_all_ended()
    assert len(bench.seen(WorkerHello)) == 1


LOOP_SCRIPT = """
    import os, signal, sys, time
    from elastic_harness.observe import report_step

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    try:
        for step in range(int(os.environ.get("FIRST", "1")), 9):
            report_step(step)
    except Stop:
        print("stopped at", step)
"""


def test_a_script_can_report_its_own_steps(bench: Bench) -> None:
    """Global steps, and where it resumed, come from its one line."""
    bench.start(LOOP_SCRIPT, FIRST="5")
    bench.until_all_ended()
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [5, 6, 7, 8]
    assert [entry.event.count for entry in bench.seen(StepCompleted)] == [1, 2, 3, 4]
    assert [entry.event.step for entry in bench.seen(ResumeObserved)] == [4]
    steps = bench.seen(StepCompleted)
    assert all(a.at <= b.event.began_at <= b.at for a, b in pairwise(steps))


def test_report_step_is_harmless_without_a_harness() -> None:
    """The line can stay in the script for good."""
    from elastic_harness.observe import report_samples, report_step

    report_step(1)
    report_samples([1, 2])


def test_a_rank_is_held_at_its_step_until_it_is_released(bench: Bench) -> None:
    """Nothing of step 4 happens before the fault pinned to step 3 has fired."""
    bench.observer.arm(3, 0)
    bench.observer.arm(6, 1)  # somebody else's
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    assert bench.observer.held == (process.pid,)
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [1, 2, 3]
    bench.observer.disarm(3, 0)
    bench.observer.release(process.pid)
    bench.until_all_ended()
    assert len(bench.seen(StepCompleted)) == 8
    assert [entry.event.step for entry in bench.seen(RankHeld)] == [3]
    assert [entry.event.step for entry in bench.seen(RankReleased)] == [3]


def test_an_order_to_hold_reaches_a_worker_at_its_next_step(bench: Bench) -> None:
    """New holds come over the socket; one that is late holds at once."""
    bench.observer.arm(2, None)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: len(bench.seen(RankHeld)) == 1)
    bench.observer.arm(1, 0)
    bench.observer.arm(5, 0)
    bench.observer.arm(7, 0)
    bench.observer.disarm(7, 0)
    bench.observer.release(process.pid)
    bench.until(lambda: len(bench.seen(RankHeld)) == 2)
    bench.observer.release(process.pid)
    bench.until(lambda: len(bench.seen(RankHeld)) == 3)
    bench.observer.release(process.pid)
    bench.until_all_ended()
    assert [entry.event.step for entry in bench.seen(RankHeld)] == [2, 3, 5]


def test_a_hold_ends_by_itself(bench: Bench) -> None:
    """A harness that forgets a rank does not stop the training for ever."""
    bench.observe(hold_s=0.2).arm(3, 0)
    bench.start(LOOP_SCRIPT)
    bench.until_all_ended()
    assert len(bench.seen(StepCompleted)) == 8
    held, released = bench.seen(RankHeld)[0], bench.seen(RankReleased)[0]
    assert 0.1 < released.at - held.at < 5.0


def test_a_held_rank_still_obeys_signals(bench: Bench) -> None:
    """SIGTERM runs the script's own handler, and what that raises goes its way."""
    bench.observer.arm(3, 0)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    process.send_signal(signal.SIGTERM)
    (text,) = bench.until_all_ended()
    assert text.strip() == "stopped at 3"


def test_a_held_rank_goes_on_when_the_harness_is_gone(bench: Bench) -> None:
    """The socket's end releases it."""
    bench.observer.arm(3, 0)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    bench.observer.close()
    text, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, text) == (0, "")


def test_without_a_harness_a_worker_just_runs(bench: Bench) -> None:
    """A socket that is not there, or that nobody answers, costs nothing or a bounded wait."""
    environ = bench.environ(ELASTIC_PROBE_SOCKET=str(bench.folder / "nobody"))
    bench.start_command([sys.executable, bench.write(LOOP_SCRIPT)], environ)
    assert bench.until_all_ended() == [""]


def test_a_harness_that_reads_nothing_does_not_slow_the_training(bench: Bench) -> None:
    """Steps that nobody takes wait in a bounded buffer and are then dropped."""
    bench.start("""
        import sys, time
        from elastic_harness.observe import report_step
        report_step(0)
        print("go", flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        for step in range(1, 50_000):
            report_step(step)
        assert time.monotonic() - began < 20
        print("done", flush=True)
        sys.stdin.readline()
    """)
    process = bench.processes[0]
    assert process.stdin is not None
    assert process.stdout is not None
    bench.until(lambda: bench.seen(StepCompleted))
    # From here on the observer does not look.
    assert process.stdout.readline() == "go\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    process.stdin.close()
    process.stdin = None
    bench.until(lambda: process.poll() is not None)
    bench.until(lambda: bench.seen(WorkerGone))
    counts = [entry.event.count for entry in bench.seen(StepCompleted)]
    assert counts == list(range(1, len(counts) + 1))
    assert 1000 < len(counts) < 50_000


def test_a_worker_of_an_older_round_that_lives_is_named_by_the_newer_hello(bench: Bench) -> None:
    """The hello waits until the harness has looked, so this is a fact and not a race."""
    wait = "import sys; sys.stdin.readline()"
    old = bench.start(wait, TORCHELASTIC_RESTART_COUNT="0")
    dead = bench.start(wait, TORCHELASTIC_RESTART_COUNT="0", LOCAL_RANK="1", RANK="1")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 2)
    dead.kill()
    dead.wait(DEADLINE_S)  # and the loop has not heard of it
    bench.start("pass", TORCHELASTIC_RESTART_COUNT="1")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 3)
    assert bench.seen(WorkerHello)[2].event.alive_before == (old.pid,)
    (gone,) = bench.seen(WorkerGone)[:1]
    assert gone.event.pid == dead.pid
    assert gone.seq < bench.seen(WorkerHello)[2].seq
    assert old.stdin is not None
    old.stdin.close()
    old.stdin = None


def test_the_same_local_rank_again_is_a_new_round_though_nothing_else_changed(bench: Bench) -> None:
    """Torchrun's membership changes alter no variable."""
    wait = "import sys; sys.stdin.readline()"
    old = bench.start(wait)
    bench.until(lambda: bench.seen(WorkerHello))
    bench.start("pass")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 2)
    assert bench.seen(WorkerHello)[1].event.alive_before == (old.pid,)
    assert old.stdin is not None
    old.stdin.close()
    old.stdin = None


def test_agents_and_probes_share_one_socket(bench: Bench) -> None:
    """Records of agents arrive as they are, beside what workers say."""
    bench.observe()
    sink = make_sink(f"unix:{bench.path}")
    event = WorkersHeld(round=1, reason="contact lost")
    told = Record(at=1.0, source="agent", node="n9", run_id="job", event=event)
    sink.send(told)
    bench.start("pass")
    bench.until_all_ended()
    bench.until(lambda: bench.seen(WorkersHeld))
    assert told in bench.history.records
    sink.close()


def test_foreign_bytes_on_the_socket_end_nothing(bench: Bench) -> None:
    """Whoever connects by mistake is ignored."""
    import socket

    bench.observe()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(bench.path)
        stranger.sendall(b'\x00\xff\n{"say":"step"}\n{"say":"hello"}\n[1]\nGET / HTTP/1.1\r\n\r\n')
        bench.start("pass")
        bench.until_all_ended()
    assert len(bench.seen(WorkerHello)) == 1


def test_a_faked_clock_in_the_worker_does_not_move_its_steps(bench: Bench) -> None:
    """Times are put back on the harness's clock, by the difference at the hello."""
    # What libfaketime does below Python, done above it: the worker's clock is a day ahead.
    bench.start_command(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import os, sys, time
                real = time.clock_gettime
                time.clock_gettime = lambda clock: real(clock) + 86400
                sys.path.insert(0, {PROBE_FOLDER!r})
                import elastic_probe
                elastic_probe.start({PROBE_FOLDER!r})
                elastic_probe.report_step(1)
            """),
        ],
        {key: value for key, value in bench.environ().items() if key != "PYTHONPATH"},
    )
    before = bench.loop.now()
    bench.until_all_ended()
    (step,) = bench.seen(StepCompleted)
    assert before - 1.0 < step.event.began_at <= step.at < bench.loop.now() + 1.0


# --- with torch ----------------------------------------------------------------------------------


OPTIMIZERS = """
    import os, sys, torch
    from torch import nn
    assert "torch.optim.optimizer" in sys.modules
    kind = sys.argv[1] if len(sys.argv) > 1 else os.environ["KIND"]
    big, small = nn.Linear(8, 8), nn.Linear(2, 2)

    def step(model, optimizer):
        model(torch.ones(model.in_features)).sum().backward()
        optimizer.step()

    if kind == "adam":
        optimizer = torch.optim.Adam(big.parameters())
        for _ in range(3):
            step(big, optimizer)
        torch.save(optimizer.state_dict(), "state.pt")
    elif kind == "resumed":
        optimizer = torch.optim.Adam(big.parameters())
        optimizer.load_state_dict(torch.load("state.pt"))
        for _ in range(2):
            step(big, optimizer)
    elif kind == "sgd":
        optimizer = torch.optim.SGD(big.parameters(), lr=0.1)
        for _ in range(3):
            step(big, optimizer)
    elif kind == "two":
        one, other = torch.optim.Adam(small.parameters()), torch.optim.Adam(big.parameters())
        for _ in range(3):
            step(small, one)
            step(big, other)
    elif kind == "nested":
        class Outer(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner

            def step(self, closure=None):
                self.inner.step()

        outer = Outer(torch.optim.Adam(big.parameters()))
        for _ in range(3):
            step(big, outer)
    elif kind == "script":
        from elastic_harness.observe import report_step
        optimizer = torch.optim.SGD(big.parameters(), lr=0.1)
        for number in range(41, 44):
            step(big, optimizer)
            report_step(number)
    elif kind == "forks":
        optimizer = torch.optim.Adam(big.parameters())
        step(big, optimizer)
        if os.fork() == 0:
            step(big, optimizer)
            os._exit(0)
        os.wait()
        step(big, optimizer)
"""


@pytest.mark.slow
def test_steps_come_from_any_optimizer(bench: Bench) -> None:
    """Global steps where the optimizer's state or the script knows them, else the process's own."""
    expected = {
        "adam": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "resumed": ([(1, 4), (2, 5)], "state", 3),
        "sgd": ([(1, None), (2, None), (3, None)], "process", None),
        "two": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "nested": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "script": ([(1, None), (1, 41), (2, 42), (3, 43)], "script", 40),
        "forks": ([(1, 1), (2, 2)], "state", 0),
    }
    script = bench.write(OPTIMIZERS)
    for number, kind in enumerate(expected):
        bench.start_command(
            [sys.executable, script, kind], bench.environ(TORCHELASTIC_RESTART_COUNT=str(number))
        )
        outputs = bench.until_all_ended()
        assert outputs[-1] == ""
        bench.processes.clear()
    for hello in bench.seen(WorkerHello):
        kind = hello.event.argv[-1]
        mine = [e.event for e in bench.seen(StepCompleted) if e.event.pid == hello.event.pid]
        steps, source, resumed = expected[kind]
        assert [(step.count, step.step) for step in mine] == steps, kind
        assert mine[-1].step_source == source, kind
        resumes = [e.event for e in bench.seen(ResumeObserved) if e.event.pid == hello.event.pid]
        assert [resume.step for resume in resumes] == ([] if resumed is None else [resumed]), kind


JOB = """
    import os, sys, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Numbers(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            return torch.full((4,), float(index))

    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    sampler = DistributedSampler(Numbers())
    loader = DataLoader(Numbers(), 2, sampler=sampler, num_workers=int(os.environ["LOADERS"]))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_is_observed_unmodified(bench: Bench) -> None:
    """Stock torchrun and an ordinary script: group, steps, samples and parameters are seen."""
    bench.observe(samples=True, hashes=True)
    environ = {k: v for k, v in bench.environ(LOADERS="2").items() if k not in WORKER}
    environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    bench.start_command(
        [*command, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", bench.write(JOB)], environ
    )
    (text,) = bench.until_all_ended()
    assert bench.processes[0].returncode == 0, text
    (world,) = bench.history.worlds.rounds
    assert sorted(world.workers) == [0, 1]
    assert (world.world_size, world.first_step, world.last_step) == (2, 1, 8)
    assert len({entry.event.nonce for entry in bench.seen(GroupFormed)}) == 1
    assert len(bench.seen(GroupFormed)) == 2
    assert len({entry.event.digest for entry in bench.seen(ParametersHashed)}) == 1
    assert len(bench.seen(ParametersHashed)) == 2
    for epoch in (0, 1):
        drawn = [e.event for e in bench.seen(SamplesDrawn) if e.event.epoch == epoch]
        used = [index for event in drawn for batch in event.batches for index in batch]
        assert sorted(used) == list(range(16))
        assert {event.size for event in drawn} == {16}
    assert len(bench.seen(WorkerFinished)) == 2


@pytest.mark.slow
def test_samples_are_followed_in_order_through_loader_processes(bench: Bench) -> None:
    """Prefetched batches count when the script gets them, not when they are fetched."""
    bench.observe(samples=True)
    bench.start("""
        import torch
        from torch.utils.data import DataLoader

        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(range(40), 4, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            for number, batch in enumerate(loader):
                model(batch.float()[:, None]).sum().backward()
                optimizer.step()
                if number == 1:
                    break  # with four more batches on their way
    """)
    assert bench.until_all_ended() == [""]
    batches = [entry.event.batches for entry in bench.seen(SamplesDrawn)]
    assert batches == [((0, 1, 2, 3),), ((4, 5, 6, 7),)] * 2


@pytest.mark.slow
def test_a_warm_worker_is_observed_like_any_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch is there before the probe; the keeper that the worker was forked from is no worker."""
    bench.observe(hashes=True)
    environ = {**bench.environ(), "KIND": "adam"}
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    for name in ("ELASTIC_PROBE_SOCKET", "ELASTIC_NODE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environ[name])
    worker = WorkerSpec(
        local_rank=0,
        rank=0,
        command=[sys.executable, bench.write(OPTIMIZERS)],
        environ=environ,
        cwd=str(bench.folder),
        stdout=str(bench.folder / "out"),
        stderr=str(bench.folder / "out"),
    )
    with AgentProcess() as agent:
        agent.send(StartGroup(round=1, workers=[worker]))
        bench.until(lambda: bench.seen(WorkerGone))
        running = agent.wait_for(WorkersRunning)
        assert running.start == "warm", running.start_reason
        assert agent.wait_for(WorkerEnded).exit_code == 0, (bench.folder / "out").read_text()
        agent.wait_for(GroupGone)
    (hello,) = bench.seen(WorkerHello)
    assert hello.event.pid == running.pids[0]
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [1, 2, 3]
    assert len(bench.seen(ParametersHashed)) == 1
    assert len(bench.seen(WorkerFinished)) == 1
    assert (bench.folder / "out").read_text() == ""
