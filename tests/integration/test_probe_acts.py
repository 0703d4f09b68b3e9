"""What a worker can be told to do to itself, in real processes, and how it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.history.events import StepCompleted

from tests.integration.probe_bench import Bench

# Steps as fast as it can; a thread that counts, and a signal handler, write down that they live.
WORKER = """
    import os, signal, sys, threading, time
    beats = open(sys.path[0] + "/beats", "w", buffering=1)

    def beat():
        while True:
            beats.write("beat\\n")
            time.sleep(0.005)

    def on_signal(*_):
        beats.write("signal\\n")

    signal.signal(signal.SIGUSR1, on_signal)
    threading.Thread(target=beat, daemon=True).start()
    step = 0
    while not os.path.exists(sys.path[0] + "/end"):
        step += 1
        sys.modules["elastic_probe"].report_step(step)
        time.sleep(0.005)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def start(bench: Bench) -> subprocess.Popen[str]:
    """Start a worker that takes steps, and wait for the first."""
    process = bench.start(WORKER)
    bench.until(lambda: bench.seen(StepCompleted))
    return process


def ref(process: subprocess.Popen[str]) -> ProcessRef:
    """Return how the observer is told which worker is meant."""
    return ProcessRef(node="", pid=process.pid)


def act(bench: Bench, process: subprocess.Popen[str], name: str, argument: str = "-") -> None:
    """Order an act."""
    assert bench.observer.order(ref(process), {"do": "act", "act": name, "argument": argument})


def wait_for(bench: Bench, process: subprocess.Popen[str], phase: str) -> None:
    """Wait until the worker is so far with what it was ordered."""
    bench.until(lambda: bench.observer.answer_of(ref(process)).get("phase") == phase)


def beats(bench: Bench) -> list[str]:
    """Return what the worker's thread and handler have written."""
    return (bench.folder / "beats").read_text().split()


def beats_after(bench: Bench, seconds: float) -> list[str]:
    """Serve the loop for a while and return what has been written meanwhile."""
    before = len(beats(bench))
    deadline = bench.loop.now() + seconds
    while bench.loop.now() < deadline:
        bench.loop.run_once(seconds)
    return beats(bench)[before:]


@pytest.mark.parametrize(
    ("name", "signum"), [("segfault", signal.SIGSEGV), ("abort", signal.SIGABRT)]
)
def test_a_native_crash_is_a_real_one(bench: Bench, name: str, signum: int) -> None:
    """The worker dies of the signal that the real thing dies of, leaves no core, and said so."""
    process = start(bench)
    act(bench, process, name)
    bench.until_all_ended()
    assert process.returncode == -signum
    assert bench.observer.answer_of(ref(process))["phase"] == "began"
    assert [path.name for path in bench.folder.iterdir() if "core" in path.name] == []


def test_a_rank_that_stands_lives_on_otherwise_and_resumes_when_told(bench: Bench) -> None:
    """Its threads and its handlers run, its steps do not; other words do not wake it."""
    process = start(bench)
    act(bench, process, "stand")
    wait_for(bench, process, "began")
    steps, lived = bench.observer.steps_of(ref(process)), len(beats(bench))
    bench.observer.release(process.pid)
    os.kill(process.pid, signal.SIGUSR1)
    bench.until(lambda: "signal" in beats(bench) and len(beats(bench)) > lived + 5)
    assert bench.observer.steps_of(ref(process)) == steps
    bench.observer.order(ref(process), {"do": "resume"})
    wait_for(bench, process, "ended")
    bench.until(lambda: bench.observer.steps_of(ref(process)) > steps)
    bench.observer.order(ref(process), {"do": "resume"})  # twice is harmless
    (bench.folder / "end").touch()
    bench.until_all_ended()
    assert process.returncode == 0


def test_all_that_is_ordered_between_two_steps_is_done(bench: Bench) -> None:
    """By several faults: the second order does not take the place of the first."""
    process = start(bench)
    process.send_signal(signal.SIGSTOP)
    for by in ("one", "other"):
        order = {"do": "act", "act": "tell_time", "by": by}
        assert bench.observer.order(ref(process), order)
    process.send_signal(signal.SIGCONT)
    bench.until(lambda: all(bench.observer.answer_of(ref(process), by) for by in ("one", "other")))
    process.kill()


def test_a_rank_that_keeps_the_lock_lets_nothing_else_run(bench: Bench) -> None:
    """No thread, no handler of its own; SIGKILL and the heal reach it."""
    process = start(bench)
    act(bench, process, "hold_gil")
    wait_for(bench, process, "began")
    bench.until(lambda: not beats_after(bench, 0.1))
    os.kill(process.pid, signal.SIGUSR1)
    assert beats_after(bench, 0.3) == []
    bench.observer.order(ref(process), {"do": "resume"})
    wait_for(bench, process, "ended")
    bench.until(lambda: "signal" in beats(bench))
    act(bench, process, "hold_gil")
    wait_for(bench, process, "began")
    process.kill()
    bench.until_all_ended()


def test_a_hang_ends_with_the_harness(bench: Bench) -> None:
    """Nobody is left who could say that it is over."""
    process = start(bench)
    act(bench, process, "hold_gil")
    wait_for(bench, process, "began")
    bench.observer.close()
    bench.until(lambda: "beat" in beats_after(bench, 0.02))
    process.kill()


def test_what_is_eaten_is_given_back_where_the_kernel_lets_it_live(bench: Bench) -> None:
    """The worker says how much it had."""
    process = start(bench)
    act(bench, process, "eat", str(40 << 20))
    wait_for(bench, process, "began")
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
    bench.observer.order(ref(process), {"do": "resume"})
    wait_for(bench, process, "ended")
    assert int(bench.observer.answer_of(ref(process))["detail"]) == 48 << 20
    act(bench, process, "juggle")
    wait_for(bench, process, "unknown")
    process.kill()


GPU_ACTS = ("device_assert", "gpu_sleep", "nccl_abort")


def test_a_worker_without_a_device_refuses_what_needs_one(bench: Bench) -> None:
    """With the reason: first it has no torch, then one that sees no device; and it goes on."""
    process = bench.start(
        """
        import os, sys, time
        step = 0
        while not os.path.exists(sys.path[0] + "/end"):
            step += 1
            sys.modules["elastic_probe"].report_step(step)
            if "torch" not in sys.modules and os.path.exists(sys.path[0] + "/import"):
                import torch
            time.sleep(0.005)
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    bench.until(lambda: bench.seen(StepCompleted))

    def refusal(name: str) -> str:
        act(bench, process, name, "10")
        bench.until(lambda: bench.observer.answer_of(ref(process)).get("act") == name)
        answer = bench.observer.answer_of(ref(process))
        assert answer["phase"] == "refused"
        return str(answer["detail"])

    assert {refusal(name) for name in GPU_ACTS} == {"it has not imported torch"}
    assert refusal("gpu_slept") == "it was not told to sleep on its GPU"
    (bench.folder / "import").touch()
    # Torch is there once one of them says something else; the others say it too.
    bench.until(lambda: refusal("gpu_sleep") != "it has not imported torch")
    why = {refusal(name) for name in GPU_ACTS}
    assert why == {"its torch has no CUDA device (torch.cuda.is_available())"}
    before = len(bench.seen(StepCompleted))
    bench.until(lambda: len(bench.seen(StepCompleted)) > before)
    (bench.folder / "end").touch()
    bench.until_all_ended()
    assert process.returncode == 0
