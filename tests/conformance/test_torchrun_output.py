"""What workers write goes where torchrun puts it, with real commands and workers."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import pytest

from tests.conformance.launchers import LIMIT_S, OURS, TORCHRUN, Running, run, write

# Each starts launchers, and most wait for a worker that imports torch.
pytestmark = pytest.mark.slow


def test_filtered_lines_are_those_that_torchrun_filters(tmp_path: Path) -> None:
    """Lines of tee'd streams with one of the texts, of every rank, in one file for each stream."""
    script = write(
        tmp_path / "talk.py",
        "import os, sys\n"
        "for word in ('loss 1', 'a,b', 'other'):\n"
        "    print(word); print('err', word, file=sys.stderr)\n",
    )
    found = {}
    for name, launcher in (("ours", OURS), ("theirs", TORCHRUN)):
        logs = tmp_path / name
        done = run(
            tmp_path,
            *(*launcher, "--standalone", "--nproc-per-node=2", f"--log-dir={logs}", "--tee=3"),
            *("--duplicate-stdout-filters=loss,a,,b", "--duplicate-stderr-filters=other", script),
        )
        assert done.returncode == 0
        found[name] = {
            path.name: sorted(path.read_text().splitlines())
            for path in logs.glob("*/attempt_0/filtered_*.log")
        }
    assert found["ours"] == found["theirs"]
    assert found["ours"]["filtered_stderr.log"] == ["[default0]:err other", "[default1]:err other"]
    assert "[default1]:a,b" in found["ours"]["filtered_stdout.log"]


PLUGIN = """
import os
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

class ByRank(DefaultLogsSpecs):
    def reify(self, envs):
        print("reify", sorted(envs), flush=True)
        if "PID_FILE" in os.environ:
            with open(os.environ["PID_FILE"], "w") as file:
                file.write(str(os.getpid()))
        if os.environ.get("PLANTED"):
            raise KeyError("planted")
        places = super().reify(envs)
        for local_rank, env in envs.items():
            path = os.path.join(self.root_log_dir, f"rank{env['RANK']}.out")
            places.stdouts[local_rank] = places.tee_stdouts[local_rank] = path
            env["MY_LOG"] = path
        return places

class Broken:
    def __init__(self, **settings):
        raise OSError("no disk")
"""


def plugin_environ(folder: Path) -> dict[str, str]:
    """Install classes for --logs-specs into a folder; return the variable that has it found."""
    site = folder / "site"
    about = site / "mylogs-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "mylogs.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mylogs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[torchrun.logs_specs]\nby-rank = mylogs:ByRank\nbroken = mylogs:Broken\n"
    )
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{site}{os.pathsep}{others}" if others else str(site)}


def test_a_class_of_the_users_places_output_as_under_torchrun(tmp_path: Path) -> None:
    """Files, console, prefixes, filters, error files and what it adds to environments."""
    script = write(
        tmp_path / "talk.py",
        "import os, sys\n"
        "print('loss at', os.path.basename(os.environ['MY_LOG']))\n"
        "print('on the console', file=sys.stderr)\n"
        "has_error_file = bool(os.environ['TORCHELASTIC_ERROR_FILE'])\n"
        "sys.exit(3 if os.environ['RANK'] == '1' and has_error_file else 0)\n",
    )
    environ = plugin_environ(tmp_path)
    found = {}
    for name, launcher in (("ours", OURS), ("theirs", TORCHRUN)):
        logs = tmp_path / name
        options = ("--standalone", "--logs-specs=by-rank", f"--log-dir={logs}")
        filters = ("--duplicate-stdout-filters=loss",)
        done = run(tmp_path, *launcher, *options, *filters, script, environ=environ)
        assert done.returncode == 0, done.stderr
        assert "on the console" in done.stderr
        (filtered,) = logs.glob("*/attempt_0/filtered_stdout.log")
        shown = [line for line in done.stdout.splitlines() if not line.startswith("reify")]
        found[name] = ((logs / "rank0.out").read_text(), shown, filtered.read_text())
    assert found["ours"] == found["theirs"]
    assert found["ours"][1] == ["[default0]:loss at rank0.out"]
    words = (*OURS, "--standalone", "--nproc-per-node=2", "--logs-specs=by-rank")
    done = run(tmp_path, *words, f"--log-dir={tmp_path / 'failed'}", script, environ=environ)
    assert (done.returncode, "exit code 3" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "planted", "message"),
    [
        ("broken", "", "--logs-specs=broken cannot be used: OSError: no disk"),
        ("by-rank", "1", "--logs-specs=by-rank cannot be used: KeyError: 'planted'"),
        ("nobodys", "", "--logs-specs=nobodys: there is no entry point of that name"),
    ],
)
def test_a_class_that_fails_is_named(tmp_path: Path, name: str, planted: str, message: str) -> None:
    """Exit code 2 and one line, whenever it fails."""
    script = write(tmp_path / "pass.py", "open('ran', 'w')")
    environ = {**plugin_environ(tmp_path), "PLANTED": planted}
    done = run(tmp_path, *OURS, "--standalone", f"--logs-specs={name}", script, environ=environ)
    assert done.returncode == 2
    assert f"pytest-elastic run: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_signal_is_heard_while_a_class_is_loaded(tmp_path: Path) -> None:
    """The node has not joined, and leaves."""
    environ = plugin_environ(tmp_path)
    (tmp_path / "site" / "mylogs.py").write_text(
        "import os, signal\nprint('is loaded', flush=True)\nwhile True: signal.pause()\n"
    )
    job = Running(
        tmp_path, *OURS, "--standalone", "--logs-specs=by-rank", __file__, environ=environ
    )
    try:
        job.wait_for("is loaded")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 128 + signal.SIGTERM, job.printed
    finally:
        job.end()


def test_the_process_of_a_class_ends_with_its_agent(tmp_path: Path) -> None:
    """SIGKILL to the agent leaves nothing of it behind."""
    script = write(
        tmp_path / "stay.py",
        "import signal\nprint('listening', flush=True)\nwhile True: signal.pause()\n",
    )
    pid_file = tmp_path / "pid"
    environ = {**plugin_environ(tmp_path), "PID_FILE": str(pid_file)}
    job = Running(
        tmp_path,
        *(*OURS, "--standalone", "--logs-specs=by-rank", f"--log-dir={tmp_path / 'logs'}", script),
        environ=environ,
    )
    try:
        job.wait_for("listening")
        pidfd = os.pidfd_open(int(pid_file.read_text()))
        job.process.kill()
        assert select.select([pidfd], [], [], LIMIT_S)[0], "it goes on"
        os.close(pidfd)
    finally:
        job.end()


def test_events_can_be_shown_on_the_console(tmp_path: Path) -> None:
    """--event-log-handler=console writes each event as a line of JSON."""
    script = write(tmp_path / "pass.py", "pass")
    done = run(tmp_path, *OURS, "--standalone", "--event-log-handler=console", script)
    assert done.returncode == 0
    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    kinds = [record["kind"] for record in records]
    assert kinds[0] == "config_resolved"
    assert kinds[-1] == "agent_exited"
