"""The small commands: doctor, chaos, check and schema, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import CAPABILITIES

from tests.cluster_bench import ROOT
from tests.conformance.launchers import LEAN
from tests.plugin.place import WITHOUT_OTHERS

LIMIT_S = 120.0
OWN_PLUGIN = """\
from elastic_harness.scenario.launchers import Launcher

def pytest_elastic_register_launchers(registry):
    script = 'echo greetings; exec "$$@"'
    words = ["sh", "-c", script, "sh", "$python", "-m", "pytest_elastic", "run"]
    words += ["--nnodes=$nnodes", "--rdzv-backend=c10d", "--rdzv-endpoint=$endpoint"]
    words += ["--rdzv-id=$run_id", "--node-name=$node", "$options", "$program"]
    registry.add(Launcher(name="greeting", command=words))
"""
# Of jobs that use no torch.
INI = f"[pytest]\naddopts = {WITHOUT_OTHERS}\nelastic_preload =\n"
SCENARIO = """\
version: 1
id: hello
title: A job that ends
job: {script: hello.py}
nodes: 1
expect:
  finally:
    - job: succeeded
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one of our commands."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_elastic", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cwd,
        check=False,
    )


def test_doctor_says_what_can_be_had_and_why_not_more(tmp_path: Path) -> None:
    """Each capability is named once; behind those that lack the same stands one reason."""
    done = run("doctor", "--cluster=process", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("process cluster: ")
    named = [line.split()[1] for line in done.stdout.splitlines() if line[2:5] in ("yes", "no ")]
    assert sorted(named) == sorted(f"{name}:" for name in CAPABILITIES)
    reasons = [line for line in done.stdout.splitlines() if "because: " in line]
    assert reasons
    assert len(reasons) == len(set(reasons)), done.stdout
    lacking = done.stdout.partition("  no   network: ")[2]
    before_the_reason = lacking.partition("because: ")[0]
    assert "  no   names: " in before_the_reason
    assert "  no   private_disk: " in before_the_reason


def test_a_scenario_is_run_by_chaos_and_judged_again_by_check(tmp_path: Path) -> None:
    """The history that a run leaves gives the same verdict without running anything."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "a.elastic.yaml").write_text(SCENARIO)
    (tmp_path / "pytest.ini").write_text(INI)
    done = run("chaos", "a.elastic.yaml", "--cluster=process", "--artifacts=runs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (each for each in (tmp_path / "runs").iterdir() if each.is_dir())
    again = run("check", str(folder), cwd=tmp_path)
    assert again.returncode == 0, again.stdout
    assert "valid    job: succeeded" in again.stdout
    history = folder / "history.jsonl"
    lines = history.read_text().splitlines()
    history.write_text("\n".join(line for line in lines if "worker_hello" not in line) + "\n")
    tampered = run("check", str(folder), cwd=tmp_path)
    assert tampered.returncode == 3, "a history without its workers proves nothing"


LATE = "job: {script: hello.py}\ntimeline: [{at: 50s, kill: rank 0}]"
UNMET = "job: {script: hello.py, max_restarts: 1}\nexpect: {finally: [{restarts: 1}]}"


@pytest.fixture
def scenarios(tmp_path: Path) -> Path:
    """Return a folder with scenarios, one for each way in which one can come out."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "pytest.ini").write_text(INI)
    for name, rest in (("unknown", LATE), ("invalid", UNMET), ("unread", "nodes: [")):
        head = f"version: 1\nid: {name}\ntitle: {name}\nnodes: 1\n"
        (tmp_path / f"{name}.elastic.yaml").write_text(f"{head}{rest}\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("unknown.elastic.yaml", 3),
        ("unknown.elastic.yaml -n 2 --patience=2", 3),
        pytest.param("--patience=2 unknown.elastic.yaml", 3, marks=pytest.mark.slow),
        ("unknown.elastic.yaml invalid.elastic.yaml", 1),
        ("missing.elastic.yaml", 2),
        ("unknown.elastic.yaml::other", 2),
        ("unread.elastic.yaml", 2),
        pytest.param("unread.elastic.yaml -n 2", 2, marks=pytest.mark.slow),
        ("empty", 2),
    ],
)
def test_scenarios_end_with_the_exit_codes_of_a_check_up(
    scenarios: Path, words: str, code: int
) -> None:
    """The worst verdict, or wrong usage, where pytest has codes of its own."""
    done = run("chaos", *words.split(), "--cluster=process", cwd=scenarios)
    assert done.returncode == code, done.stdout + done.stderr
    assert "warnings summary" not in done.stdout


@pytest.fixture
def own_kinds(tmp_path: Path) -> Path:
    """Return a project with a kind of cluster in its conftest.py, and a launcher in a plugin."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "a.elastic.yaml").write_text(SCENARIO)
    own = INI.replace("addopts = ", "testpaths = checks\naddopts = -p own_plugin ")
    (tmp_path / "pytest.ini").write_text(own)
    (tmp_path / "own_plugin.py").write_text(OWN_PLUGIN)
    (tmp_path / "checks").mkdir()
    (tmp_path / "conftest.py").write_text(
        "from elastic_harness.cluster.choose import choose_cluster\n"
        "from elastic_harness.cluster.registry import ClusterKind\n"
        "def pytest_elastic_register_clusters(registry):\n"
        "    made = lambda options: choose_cluster('process')\n"
        "    registry.add(ClusterKind(name='mine', choose=made))\n"
    )
    return tmp_path


@pytest.mark.slow
def test_clusters_and_launchers_of_the_users_own_are_found_where_pytest_finds_them(
    own_kinds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a conftest.py and in a plugin; for scenario files, for a script, and by doctor."""
    done = run("chaos", "--cluster=mine", "a.elastic.yaml", cwd=own_kinds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    asked = run("doctor", "--cluster=mine", cwd=own_kinds)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("process cluster: ")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    again = run("doctor", "--cluster=mine", cwd=own_kinds)
    assert again.stdout == asked.stdout, again.stderr
    words = ["chaos", "--cluster=mine", "--launcher=greeting", "--nodes=2", "hello.py"]
    short = run(*words, cwd=own_kinds)
    assert short.returncode == 2
    assert "hello.py ended well, but no step was seen" in short.stderr, short.stderr
    assert "hello.py on 2 nodes (process cluster), started by greeting\n" in short.stdout
    greeted = own_kinds / ".elastic" / "chaos-hello" / "uninterrupted" / "logs" / "n1"
    assert "greetings\n" in (greeted / "launcher.log").read_text()
    history = (greeted.parents[1] / "history.jsonl").read_text()
    assert '"counts_by_node":true' in history


@pytest.mark.parametrize("command", [["doctor"], ["chaos", "hello.py"]])
def test_a_kind_of_cluster_that_nobody_has_registered_is_refused_with_those_there_are(
    own_kinds: Path, command: list[str]
) -> None:
    """Your own among them, and how one is registered."""
    refused = run(command[0], "--cluster=none", *command[1:], cwd=own_kinds)
    assert refused.returncode == 2
    assert "--cluster=none: expected auto, namespace, process, ssh, ray, mine or" in refused.stderr
    assert "pytest_elastic_register_clusters" in refused.stderr
    (own_kinds / "own_plugin.py").write_text("import none_such\n")
    refused = run(command[0], "--cluster=mine", *command[1:], cwd=own_kinds)
    assert refused.returncode == 2
    assert "none_such" in refused.stderr
    assert "pytest could not begin" in refused.stderr


def test_schema_is_a_json_schema_with_every_fault(tmp_path: Path) -> None:
    """Editors complete what the loader accepts."""
    done = run("schema", cwd=tmp_path)
    schema = json.loads(done.stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"kill", "power_cut", "partition"} <= set(schema["$defs"]["Entry"]["properties"])


def test_init_writes_a_test_a_scenario_and_a_workflow_that_work(tmp_path: Path) -> None:
    """They pass as they are for a script that loses nothing, and are never written over."""
    shutil.copy(ROOT / "examples" / "minimal.py", tmp_path / "train.py")
    done = run("init", "train.py", "--steps=60", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workflow = tmp_path / ".github" / "workflows" / "elastic.yml"
    assert (
        "pytest-elastic chaos --artifacts=elastic-runs train.py --steps=60" in workflow.read_text()
    )
    again = run("init", "train.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "tests/elastic/test_train.py is there already" in again.stderr
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/elastic"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout
    assert "3 passed" in tests.stdout


def test_init_refuses_a_script_that_is_not_there(tmp_path: Path) -> None:
    """And writes nothing."""
    done = run("init", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no script 'train.py'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_job_ends_well_where_all_streams_are_closed(tmp_path: Path) -> None:
    """No socket of ours takes the number of a stream that is closed, where workers would write."""
    (tmp_path / "hello.py").write_text("print('hello'); open('done', 'w').close()")
    closed = 'exec "$@" <&- >&- 2>&-'
    command = [sys.executable, "-m", "pytest_elastic", "run", "--standalone", "hello.py"]
    done = subprocess.run(
        ["sh", "-c", closed, "sh", *command],
        timeout=LIMIT_S,
        cwd=tmp_path,
        env={**os.environ, **LEAN},
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "done").exists()
