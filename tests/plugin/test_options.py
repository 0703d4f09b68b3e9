"""Options, ini settings, the marker and the fixtures, as a user meets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.plugin.place import Place, scenario

NAMES = ("nodes", "nproc", "launcher", "cluster", "preload", "seed", "artifacts", "keep", "replay")


def test_help_shows_every_option_in_a_group_and_every_ini_twin(place: Place) -> None:
    """`pytest --help` has groups "elastic: ..." with all options, and each has an ini setting."""
    called = place.pytest("--help")
    assert called.code == 0
    headings = [line for line in called.out.splitlines() if line[:1].strip()]
    ours = [line for line in headings if line.startswith("elastic: ")]
    assert len(ours) == 5
    begin = called.out.index(ours[0])
    group = called.out[begin : called.out.index(headings[headings.index(ours[-1]) + 1], begin)]
    settings = called.out[called.out.index("[pytest] configuration options") :]
    for name in NAMES:
        assert f"  --elastic-{name}=" in group
        assert f"  elastic_{name} (string):" in settings
    assert called.out.count("--elastic-nodes=") == 1


def test_markers_and_fixtures_explain_themselves(place: Place) -> None:
    """`--markers` says what the marker takes and what beats it, `--fixtures` how to use each."""
    markers = place.pytest("--markers").out
    assert "@pytest.mark.elastic(nodes=2, nproc=2, max_restarts=3, limit='60s'" in markers
    assert "@pytest.mark.ranks(4, limit='60s', backend='gloo'): run the test on" in markers
    fixtures = place.pytest("--fixtures").out
    for name, example in {
        "elastic_job": 'elastic_job("train.py", "--steps=40", nodes=2).wait().succeeded',
        "elastic_chaos": 'elastic_chaos.at(step=22, rank=1).kill("rank 1")',
        "elastic_history": "elastic_history().worlds.rounds",
        "elastic_seed": "random.Random(elastic_seed)",
        "elastic_cluster": 'elastic_cluster.has("network")',
        "elastic_leak_check": 'usefixtures("elastic_leak_check")',
        "rank": "marked `@pytest.mark.ranks(4)`",
        "world_size": "marked `@pytest.mark.ranks(4)`",
    }.items():
        about = fixtures.partition(f"\n{name} ")[2].partition("\n\n")[0]
        assert example in about


REFUSED: Sequence[tuple[list[str], str]] = [
    (["--elastic-nodes=4:2"], "--elastic-nodes=4:2 asks for at least 4 and at most 2 nodes"),
    (["--elastic-nodes=many"], "--elastic-nodes='many' is not a number of nodes"),
    (["--elastic-nproc=0"], "--elastic-nproc=0: expected a whole number of at least 1"),
    (["--elastic-patience=0"], "--elastic-patience=0: expected a number from 1"),
    (["--elastic-seed=x"], "--elastic-seed=x: expected a whole number of at least 0"),
    (["--elastic-cluster=cloud"], "--elastic-cluster=cloud: expected auto, namespace, process"),
    (["--elastic-copy=."], "the nodes of --elastic-cluster=auto are on this machine"),
    (["--elastic-hosts=hosts"], "the nodes of --elastic-cluster=auto are on this machine"),
    (["--elastic-ray=auto"], "--elastic-ray=auto: nodes are not on the machines of a Ray cluster"),
    (["--elastic-ray-machines=x"], "--elastic-ray-machines=x: expected a whole number"),
    (["--elastic-launcher=mpirun"], "--elastic-launcher: there is no launcher 'mpirun'"),
    (["--elastic-replay=nothing.json"], "nothing.json: cannot be read: No such file"),
    (["--elastic-replay=pytest.ini"], "pytest.ini: cannot replay this plan"),
    (["--elastic-artifacts=/proc/x/y"], "/proc/x/y: no folder can be made in /proc: No such"),
    (["--elastic-artifacts=pytest.ini"], "no folder can be made in "),
    (["-o", "elastic_artifacts=/proc/x"], "no folder can be made in /proc: No such"),
    (["-o", "elastic_keep=some"], "elastic_keep = some: expected one of failed, all"),
    (["-o", "elastic_nproc=none"], "--elastic-nproc=none: expected a whole number"),
]
# As if it were typed several times; a process for each takes half a second.
CALLS = """
    import sys
    import pytest

    for arguments in {calls}:
        print("called with", *arguments, flush=True)
        print("code", int(pytest.main(arguments)), flush=True)
"""


def test_a_value_that_is_none_is_refused_before_anything_runs(place: Place) -> None:
    """One clear line, exit code 4, no traceback; ini settings are looked at as well."""
    place.add("test_it.py", "def test_it(): print('it ran')")
    place.add("calls.py", CALLS.format(calls=[arguments for arguments, _ in REFUSED]))
    _, *told = place.call([sys.executable, "calls.py"]).out.split("called with ")
    assert len(told) == len(REFUSED)
    for (arguments, message), said in zip(REFUSED, told, strict=True):
        first, *lines = said.splitlines()
        assert first == " ".join(arguments)
        assert f"code {int(pytest.ExitCode.USAGE_ERROR)}" in lines, said
        assert [line for line in lines if message in line], said
        assert "Traceback" not in said
        assert "test_it.py" not in said


def test_without_the_plugin_nothing_of_it_is_there(place: Place) -> None:
    """`-p no:elastic`: no option, no fixture, and scenario files are files like any other."""
    place.add("a.elastic.yaml", "not: a scenario")
    place.add("test_it.py", "def test_it(elastic_seed): pass")
    called = place.pytest("-p", "no:elastic")
    assert "fixture 'elastic_seed' not found" in called.out
    assert "elastic.yaml" not in called.out
    assert "--elastic-nodes" not in place.pytest("-p", "no:elastic", "--help").out
    refused = place.pytest("-p", "no:elastic", "--elastic-nodes=3")
    assert "unrecognized arguments: --elastic-nodes=3" in refused.out


def test_the_seed_is_said_before_anything_runs_and_is_the_one_asked_for(place: Place) -> None:
    """A session that uses us says so in its header, or once it knows; another one never does."""
    place.add("test_it.py", "def test_it(elastic_seed): assert elastic_seed == 17")
    called = place.pytest("--elastic-seed=17", "--elastic-cluster=process")
    assert called.code == 0, called.out
    before_collecting = called.out.partition("collected")[0]
    assert "elastic: process cluster (" in before_collecting
    assert "seed 17" in before_collecting
    by_ini = place.pytest("-o", "elastic_seed=17", "-o", "elastic_cluster=process")
    assert "seed 17" in by_ini.out
    place.add("test_it.py", "def test_it(elastic_seed): print(f'<{elastic_seed}>')")
    drawn = place.pytest("-s")
    seed = drawn.out.partition("<")[2].partition(">")[0]
    said = [line for line in drawn.out.splitlines() if line.startswith("elastic: ")]
    assert seed.isdecimal()
    assert said[0].endswith(f"seed {seed}")
    assert drawn.out.index(said[0]) < drawn.out.index("test_it.py")
    place.add("test_it.py", "def test_it(): pass")
    assert "elastic:" not in place.pytest().out


def test_what_is_preloaded_is_found_loaded_by_workers(tmp_path: Path) -> None:
    """One that is called for is, and nothing is an answer, too; what cannot be had is named."""
    place = Place(tmp_path, preload="")
    place.add_ini()
    place.add(
        "test_it.py",
        """
        def loaded():
            import sys
            # What is not Python's own is out of sight until it is imported.
            return "libtorch" in open("/proc/self/maps").read(), "mailbox" in sys.modules

        def test_it(elastic_job):
            assert elastic_job(loaded, nodes=1).wait().results == {0: "?"}
        """,
    )
    options = ("-o", "elastic_cluster=process")
    assert "{0: (False, False)} == {0: '?'}" in place.pytest(*options).out
    other = place.pytest(*options, "--elastic-preload=mailbox")
    assert "{0: (False, True)} == {0: '?'}" in other.out
    refused = place.pytest(*options, "--elastic-preload=no_such_module")
    assert "cannot preload 'no_such_module': No module named 'no_such_module'" in refused.out
    place.add("pytest.ini", "[pytest]")
    by_default = place.pytest(*options)
    assert "{0: (True, False)} == {0: '?'}" in by_default.out


def test_patience_stretches_what_a_test_waits_for(place: Place) -> None:
    """By option, variable or ini setting, in this order; the command that repeats it says so."""
    place.add_scripts()
    place.add(
        "test_it.py",
        """
        def test_it(elastic_job):
            job = elastic_job("hello.py", nodes=1)
            job.wait_for_event("worker_hello", within="20ms")
            assert job.wait()
        """,
    )
    options = ("-o", "elastic_cluster=process")
    assert place.pytest(*options, "-o", "elastic_patience=1000").code == 0
    patient = Place(place.folder, {"PYTEST_ELASTIC_PATIENCE": "1000"})
    assert patient.pytest(*options, "-o", "elastic_patience=1").code == 0
    overruled = patient.pytest(*options, "--elastic-patience=1")
    assert overruled.code == 1
    assert "NotSeen: event worker_hello within 20ms: " in overruled.out
    assert "--elastic-patience=1" in overruled.out.rpartition("\nagain ")[2]


def test_old_runs_go_when_a_session_ends(place: Place) -> None:
    """But for the newest ones; the session's line says so, and a size that is none is refused."""
    place.add_scripts()
    place.add("some.elastic.yaml", scenario("plain"))
    old = place.folder / ".elastic" / "old"
    old.mkdir(parents=True)
    for name in ("plan.json", "history.jsonl"):
        (old / name).touch()
        os.utime(old / name, (0, 0))
    options = ("-o", "elastic_cluster=process", "--elastic-keep=all")
    assert "removed" not in place.pytest(*options).out
    again = place.pytest(*options, "--elastic-keep-runs=1")
    assert not old.exists()
    assert "index.html; removed 1 of earlier sessions" in again.out
    assert len(place.runs) == 2, "the first one was written in the last hour"
    refused = place.pytest(*options, "--elastic-keep-size=much")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert "--elastic-keep-size=much: expected a size such as 100MB or 2GB" in refused.out
