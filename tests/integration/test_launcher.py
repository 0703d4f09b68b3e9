"""`pytest-elastic run` as its users meet it: real commands, real workers, no cluster."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import launch_server
from tests.conformance.test_torchrun_parity import PAGE_IS_OF, TORCH
from tests.integration.called_launcher import LEAN, Running

LIMIT_S = 240.0

# What torchrun gives every worker (docs: torch.distributed.run, "Environment Variables"), whose
# values must be the same for the same job; addresses, ports and paths differ by nature.
SAME_VALUES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "OMP_NUM_THREADS",
)
SAME_KEYS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")


def write(path: Path, *lines: str) -> str:
    """Write a script and return its path."""
    path.write_text("\n".join(("import json, os, pathlib, sys, time", *lines)) + "\n")
    return str(path)


def command(*words: str) -> list[str]:
    """Return the command line of our launcher."""
    return [sys.executable, "-m", "pytest_elastic", "run", *words]


def run(
    *words: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run our launcher to its end."""
    process = launch_server.start(
        command(*words), cwd=cwd or Path(), environ={**os.environ, **LEAN, **(environ or {})}
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode is not None, "it has ended"
    return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())


def dumped(folder: Path) -> dict[int, dict[str, str]]:
    """Return the environments that workers have written into a folder, by rank."""
    return {int(path.stem): json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


DUMP = "json.dump(dict(os.environ), open(f\"{sys.argv[1]}/{os.environ['RANK']}.json\", 'w'))"


def test_workers_get_what_torchrun_gives_them(tmp_path: Path) -> None:
    """The same script sees the same variables under both launchers, key by key."""
    script = write(tmp_path / "dump.py", DUMP)
    options = ("--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--role=trainer")
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=run7")
    folders = {name: tmp_path / name for name in ("ours", "theirs")}
    for folder in folders.values():
        folder.mkdir()
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    for name, launcher in (
        ("ours", command()),
        ("theirs", [sys.executable, "-m", "torch.distributed.run"]),
    ):
        subprocess.run(
            [*launcher, *options, *meeting, script, str(folders[name])],
            env=environ,
            timeout=LIMIT_S,
            check=True,
            capture_output=True,
        )
    ours, theirs = dumped(folders["ours"]), dumped(folders["theirs"])
    assert ours.keys() == theirs.keys() == {0, 1}
    for rank, expected in theirs.items():
        added = {key for key in expected if key not in environ}
        missing = {key for key in added if key not in ours[rank]}
        # torch's own default is better for the flight recorder (docs/torchrun-parity.md).
        assert missing == {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}, f"torchrun gives rank {rank} more"
        for key in SAME_VALUES:
            if key not in expected and TORCH < PAGE_IS_OF:
                continue  # only a later torchrun sets it
            assert ours[rank].get(key) == expected.get(key), key
        for key in SAME_KEYS:
            assert ours[rank].get(key), key
        assert ours[rank]["PYTEST_ELASTIC_ROUND"] == "1"


def test_a_failing_job_is_restarted_within_its_budget_and_then_fails(tmp_path: Path) -> None:
    """One restart, told to every rank, then exit code 1 and the first failure by name."""
    script = write(
        tmp_path / "fail.py",
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']",
        "print(f'count {count}', flush=True)",  # at once: the other rank prints, too
        "said = pathlib.Path(__file__).with_name(f'rank-0-said-{count}')",
        "if os.environ['RANK'] == '0': said.touch(); time.sleep(60)",
        "while not said.exists(): time.sleep(0.01)",
        "sys.exit(3)",
    )
    done = run("--standalone", "--nproc-per-node=2", "--max-restarts=1", script)
    assert done.returncode == 1
    assert sorted(re.findall(r"count (\d)", done.stdout)) == ["0", "0", "1", "1"]
    assert "first failure: rank 1" in done.stderr
    assert "exit code 3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recorded_exception_is_in_the_summary(tmp_path: Path) -> None:
    """What `@record` writes is read: message and traceback of the first failure."""
    script = write(
        tmp_path / "raise.py",
        "from torch.distributed.elastic.multiprocessing.errors import record",
        "@record",
        "def main():",
        "    raise ValueError('sample 17 is not a tensor')",
        "main()",
    )
    done = run("--standalone", script)
    assert done.returncode == 1
    summary = done.stderr.partition("first failure")[2]
    assert "ValueError: sample 17 is not a tensor" in summary
    assert "line 5, in main" in summary


def test_output_can_be_redirected_and_shown(tmp_path: Path) -> None:
    """-r puts output into files by attempt and local rank; -t shows it with its prefix, too."""
    script = write(
        tmp_path / "talk.py",
        "print('out', os.environ['RANK'])",
        "print('err', os.environ['RANK'], file=sys.stderr)",
    )
    logs = tmp_path / "logs"
    done = run(
        "--standalone", "--nproc-per-node=2", f"--log-dir={logs}", "-r", "3", "-t", "0:1", script
    )
    assert done.returncode == 0
    (folder,) = logs.iterdir()
    for rank in ("0", "1"):
        attempt = folder / "attempt_0" / rank
        assert (attempt / "stdout.log").read_text() == f"out {rank}\n"
        assert (attempt / "stderr.log").read_text() == f"err {rank}\n"
    assert done.stdout == "[default0]:out 0\n"


@pytest.mark.parametrize("start", ["auto", "exec"])
def test_an_agent_may_have_many_descriptors_and_workers_as_many_as_before(
    tmp_path: Path, start: str
) -> None:
    """Each member is a connection of its coordinator, and each rank one of the worker store."""
    script = write(
        tmp_path / "limits.py",
        "import resource",
        "keeper = os.getppid()",
        "agent = int(pathlib.Path(f'/proc/{keeper}/stat').read_text().split(') ')[1].split()[1])",
        "children = pathlib.Path(f'/proc/{keeper}/task/{keeper}/children').read_text().split()",
        "(service,) = {int(pid) for pid in children} - {os.getpid()}",
        "pids = (agent, service, keeper, 0)",
        "print([resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids])",
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    launcher = command("--standalone", f"--worker-start={start}", script)
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -Sn 500; exec "$@"', "sh", *launcher],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **LEAN},
        check=True,
    )
    assert done.stdout == f"{[(hard, hard)] * 2 + [(500, hard)] * 2}\n"


@pytest.mark.parametrize("start", ["auto", "exec"])
def test_a_module_runs_under_both_ways_to_start(tmp_path: Path, start: str) -> None:
    """-m, arguments and `${local_rank}` arrive, warm or exec'ed."""
    package = tmp_path / "job"
    package.mkdir()
    write(package / "__init__.py")
    write(package / "helper.py", "NAME = 'helped'")
    write(package / "train.py", "from .helper import NAME", "print(NAME, *sys.argv[1:])")
    done = run(
        "--standalone",
        f"--worker-start={start}",
        "-m",
        "job.train",
        "--at=${local_rank}",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "helped --at=0\n")


def test_a_program_that_is_not_python_runs(tmp_path: Path) -> None:
    """--no-python runs a binary with the worker's environment, and no torch is imported for it."""
    words = ("--standalone", "--no-python", "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    events = {"PYTEST_ELASTIC_EVENTS": f"file:{tmp_path / 'events'}"}
    done = run(*words, environ=events)
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1\n")
    reason = "/bin/sh is not the launcher's own Python"
    assert f'"start":"exec","start_reason":"{reason}"' in (tmp_path / "events").read_text()


def test_a_script_on_standard_input_runs(tmp_path: Path) -> None:
    """As Python itself takes it, `-`."""
    done = subprocess.run(
        command("--standalone", "-", "--lr", "3"),
        input="import sys; print(sys.argv)",
        cwd=tmp_path,
        env={**os.environ, **LEAN},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "['-', '--lr', '3']\n"), done.stderr


def test_two_nodes_meet_at_an_endpoint_and_one_leaves(tmp_path: Path) -> None:
    """Two agents on one machine: one job of two nodes; one is told to leave, the other goes on."""
    script = write(
        tmp_path / "stay.py",
        "print(f\"world {os.environ['WORLD_SIZE']}\", flush=True)",
        "while not os.path.exists(sys.argv[1]): time.sleep(0.05)",
    )
    done = tmp_path / "done"
    words = (
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        # An address that no other test uses, so that the default port is free there.
        f"--rdzv-endpoint=127.81.{os.getpid() >> 8 & 255}.{os.getpid() & 255}:29400",
        "--rdzv-conf=beat_interval=0.2,lease=2,last_call_timeout=30,min_round=0.1",
        script,
        str(done),
    )
    agents = [Running(*words, cwd=tmp_path), Running(*words, cwd=tmp_path)]
    try:
        for agent in agents:
            agent.wait_for("world 2")
        (host,) = [agent for agent in agents if "hosting the rendezvous" in agent.printed]
        (other,) = [agent for agent in agents if agent is not host]
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(LIMIT_S) == 128 + signal.SIGTERM
        host.wait_for("world 1")
        done.touch()
        assert host.process.wait(LIMIT_S) == 0
    finally:
        for agent in agents:
            agent.end()


def test_help_needs_neither_torch_nor_time() -> None:
    """--help answers without importing torch."""
    code = (
        "import sys; from pytest_elastic.cli.main import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules and 'asyncio' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--rdzv-endpoint" in done.stdout
