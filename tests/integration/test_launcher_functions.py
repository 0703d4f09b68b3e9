"""Functions as workers: `elastic_launch(config, function)(*args)`, as users call it."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.errors import RendezvousError, UsageError
from pytest_elastic.launcher import JobFailed, elastic_launch, launch, launch_config
from pytest_elastic.launcher.settings import as_launch_config
from tests.conformance.launchers import Running, address

# These functions do not import torch: a fresh interpreter is ready sooner than one that has it. Nor
# does this module, which some of their workers import.
plain = functools.partial(launch_config, worker_start="exec")


class Place:
    """Something of this module, which no worker could import."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def test_results_come_back_by_rank() -> None:
    """A function of a test, with what it closes over, its arguments, and a class beside it."""
    factor = 10

    def work(offset: int) -> tuple[Place, int]:
        rank = int(os.environ["RANK"])
        return Place(rank), rank * factor + offset

    results = elastic_launch(plain(nproc_per_node=2), functools.partial(work))(7)
    assert sorted(results) == [0, 1]
    assert [number for _, number in results.values()] == [7, 17]
    assert all(isinstance(place, Place) for place, _ in results.values())


def test_an_exception_is_raised_with_its_root_cause(tmp_path: Path) -> None:
    """After the restarts it was allowed: rank, message and traceback of who failed first."""

    def work(folder: Path) -> None:
        if os.environ["RANK"] == "0":
            signal.pause()
        with (folder / "attempts").open("a") as attempts:
            attempts.write("1\n")
        raise ValueError("sample 17 is not a tensor")

    with pytest.raises(JobFailed) as caught:
        elastic_launch(plain(nproc_per_node=2, max_restarts=1), work)(tmp_path)
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.exit_code) == (1, 1)
    assert failure.message == "ValueError: sample 17 is not a tensor"
    assert "in work" in failure.traceback
    assert "function_worker" not in failure.traceback
    assert failure.traceback in str(caught.value) + "\n"
    assert (tmp_path / "attempts").read_text() == "1\n1\n"


def test_a_first_failure_has_what_torchs_has() -> None:
    """A caller that reads torch's ProcessFailure reads the same of ours."""
    began = int(time.time())

    def work() -> None:
        raise ValueError("sample 17 is not a tensor")

    with pytest.raises(JobFailed) as caught:
        elastic_launch(plain(), work)()
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (0, 0, 1)
    assert failure.signal_name() == "<N/A>"
    assert began <= failure.timestamp <= time.time()
    assert failure.error_file.endswith("/0/error.json")
    said = failure.error_file_data["message"]
    assert said["message"] == failure.message == "ValueError: sample 17 is not a tensor"
    assert said["extraInfo"]["timestamp"] == str(failure.timestamp)
    assert "in work" in said["extraInfo"]["py_callstack"]


@pytest.mark.parametrize(
    ("config", "entrypoint", "message"),
    [
        (plain(), threading.Lock().acquire, "cannot send .* to workers: .*cannot pickle"),
        (plain(local_addr="nowhere.invalid"), "true", "--local-addr=nowhere.invalid: no such"),
        (
            plain(preload="no_such_module", worker_start="auto"),
            os.getpid,
            "the keeper ended with 2",
        ),
        (plain(), "", "cannot launch ''"),
    ],
)
def test_what_cannot_begin_is_a_usage_error(
    config: object, entrypoint: Callable[..., Any] | str, message: str
) -> None:
    """The caller's mistake is reported as one, no matter which process noticed it."""
    with pytest.raises(UsageError, match=message):
        elastic_launch(config, entrypoint)()


@pytest.mark.parametrize(
    ("number", "how"), [(9, r"was killed by SIGKILL \(9\)"), (40, "was killed by signal 40")]
)
def test_an_agent_that_is_killed_is_an_error_that_says_by_what(number: int, how: str) -> None:
    """Also by a signal that has no name."""

    def kills_the_agent() -> None:
        keeper = os.getppid()
        agent = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, number)
        signal.pause()

    with pytest.raises(RendezvousError, match=f"the process of the agent {how}"):
        elastic_launch(plain(), kills_the_agent)()


def test_settings_are_refused_in_the_words_of_the_command() -> None:
    """By the same door."""
    with pytest.raises(UsageError, match="--nproc-per-node=none: expected a number"):
        launch_config(nproc_per_node="none")
    with pytest.raises(UsageError, match="there is no option --nprocs-per-node"):
        launch_config(nprocs_per_node=1)
    with pytest.raises(UsageError, match="there is no option --nproc\nDid you mean --nproc-per-n"):
        launch_config(nproc=1)
    with pytest.raises(UsageError, match="cannot launch with settings of type dict"):
        elastic_launch({"nproc_per_node": 1}, print)


def test_variables_of_the_command_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job around the caller may have some."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    assert launch_config().nproc_per_node == 1
    assert launch_config(standalone=True, tee=3, node_rank=None, no_python=False).tee == "3"


def test_a_job_that_cannot_go_on_is_an_error_of_the_surroundings() -> None:
    """Nobody hosts the endpoint."""
    config = plain(
        nnodes=2,
        rdzv_backend="c10d",
        rdzv_endpoint=address(95),
        rdzv_conf="is_host=false,join_timeout=1,store_timeout=0.5",
    )
    with pytest.raises(RendezvousError, match="no leader was reached within 1 s"):
        elastic_launch(config, print)()


def test_a_command_and_a_script_can_be_launched(tmp_path: Path) -> None:
    """A command has no results; `launch` takes a script, and returns the command's exit code."""
    config = plain(nproc_per_node=2)
    assert elastic_launch(config, "touch")(tmp_path / "touched") == {0: None, 1: None}
    assert (tmp_path / "touched").exists()
    (tmp_path / "train.py").write_text("import sys; sys.exit(len(sys.argv))")
    assert launch(plain(str(tmp_path / "train.py"), "--steps=3")) == 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return what starts Python programs in the test's folder, and ends them with it."""
    started: list[Running] = []

    def begin(*words: str) -> Running:
        started.append(Running(tmp_path, sys.executable, *words))
        return started[-1]

    yield begin
    for running in started:
        running.end()


SCRIPT = """
import os, sys
from pytest_elastic.launcher import JobFailed, elastic_launch, launch_config

def inner(rank):
    return f"{rank}.{os.environ['RANK']}"

def failing():
    raise KeyError("planted below")

def outer():
    config = launch_config(nproc_per_node=2, worker_start="exec")
    below = elastic_launch(config, inner)(os.environ["RANK"])
    print(f"{below} {sys.argv[1:]}", flush=True)
    elastic_launch(config, failing)()

try:
    elastic_launch(launch_config(worker_start="exec"), outer)()
except JobFailed as error:
    print("cause:", error.first_failure.message)
"""


@pytest.mark.slow
def test_functions_of_a_script_are_launched_also_from_workers(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """No guard is needed around `__main__`; a failure deep below comes up as what it was."""
    (tmp_path / "job.py").write_text(SCRIPT)
    job = start("job.py", "--steps=3")
    assert job.wait() == 0, job.printed
    assert "{0: '0.0', 1: '0.1'} ['--steps=3']" in job.printed
    assert "cause: KeyError: 'planted below'" in job.printed


@pytest.mark.slow
def test_two_nodes_call_the_same_function(start: Callable[..., Running]) -> None:
    """Each gets its own workers' results, from `python -c` as from a file, with a real group."""
    code = f"""
from pytest_elastic.launcher import elastic_launch, launch_config
def total():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    ranks = torch.tensor([dist.get_rank()])
    dist.all_reduce(ranks)
    dist.destroy_process_group()
    return int(ranks), dist.is_torchelastic_launched()
meeting = dict(rdzv_backend="c10d", rdzv_endpoint="{address(94)}")
config = launch_config(nnodes=2, nproc_per_node=2, preload="torch", **meeting)
print(f"results {{elastic_launch(config, total)()}}", flush=True)
"""
    nodes = [start("-c", code), start("-c", code)]
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].printed + nodes[1].printed
    found = {line for n in nodes for line in n.printed.splitlines() if "results" in line}
    first, second = "{0: (6, True), 1: (6, True)}", "{2: (6, True), 3: (6, True)}"
    assert found == {f"results {first}", f"results {second}"}


WAITS = """
import os, signal, sys, time
from pytest_elastic.launcher import NodeLeft, elastic_launch, launch_config
def wait():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    print("up", os.getpid(), flush=True)
    while True: signal.pause()
try:
    elastic_launch(launch_config(worker_start="exec"), wait)()
except NodeLeft as left:
    sys.exit(left.exit_code)
except KeyboardInterrupt:
    sys.exit(77)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 77)])
def test_signals_to_the_caller_make_its_node_leave(
    start: Callable[..., Running], number: signal.Signals, code: int
) -> None:
    """With the workers' grace; Ctrl-C is a KeyboardInterrupt, as anywhere."""
    job = start("-c", WAITS)
    job.wait_for("up")
    job.process.send_signal(number)
    assert job.wait() == code, job.printed
    assert "Traceback" not in job.printed


def test_a_caller_that_is_killed_leaves_nothing(start: Callable[..., Running]) -> None:
    """Its agent leaves the job, and its workers get their grace: seen by their own end."""
    job = start("-c", WAITS)
    job.wait_for("up")
    job.process.send_signal(signal.SIGKILL)
    # Its output ends when nobody is left who could write to it.
    job.wait()
    assert "leaving the job: the agent received SIGTERM" in job.printed


def test_settings_of_torchs_own_are_taken() -> None:
    """`LaunchConfig` of torch.distributed.launcher, field by field."""
    api = importlib.import_module("torch.distributed.launcher.api")
    theirs = api.LaunchConfig(
        min_nodes=1,
        max_nodes=3,
        nproc_per_node=2,
        run_id="job7",
        role="trainer",
        rdzv_backend="c10d",
        rdzv_endpoint="node0:29411",
        rdzv_configs={"join_timeout": 7, "timeout": 3},
        max_restarts=5,
        local_addr="127.0.0.1",
        log_line_prefix_template="${rank}: ",
    )
    # torch 2.7 has no such fields.
    theirs.duplicate_stdout_filters = ["a,b", "c"]
    theirs.shutdown_timeout, theirs.signals_to_handle = 4, "SIGTERM"
    ours = as_launch_config(theirs)
    assert (ours.min_nodes, ours.max_nodes, ours.nproc_per_node) == (1, 3, 2)
    assert (ours.run_id, ours.role, ours.max_restarts) == ("job7", "trainer", 5)
    assert (ours.backend, str(ours.endpoint)) == ("c10d", "node0:29411")
    assert ours.rendezvous.join_timeout_s == 7
    assert (ours.local_addr, ours.log_line_prefix) == ("127.0.0.1", "${rank}: ")
    assert ours.stdout_filters == ("a,b", "c")
    assert (ours.shutdown_timeout_s, ours.signals) == (4.0, (signal.SIGTERM,))
    assert ours.log_dir is None
    multiprocessing = importlib.import_module("torch.distributed.elastic.multiprocessing")
    logs = api.DefaultLogsSpecs(log_dir="/logs", tee=multiprocessing.Std.ALL)
    theirs = api.LaunchConfig(1, 1, 1, logs_specs=logs, rdzv_backend="c10d")
    ours = as_launch_config(theirs)
    assert (ours.log_dir, ours.tee, ours.redirects) == ("/logs", "3", "0")


def test_the_example_of_the_page_does_what_the_page_says(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """docs/launching-from-python.md, word for word."""
    page = (Path(__file__).parents[2] / "docs" / "launching-from-python.md").read_text()
    code, printed = (
        page.partition(f"```{language}\n")[2].partition("```")[0] for language in ("python", "text")
    )
    (tmp_path / "job.py").write_text(code)
    job = start("job.py")
    assert job.wait() == 0, job.printed
    for line in printed.splitlines():
        assert line in job.printed.splitlines()
