"""Tests of a user, run on the machines of a Ray cluster: raylets in namespaces of this machine.

`tox -e ray`, which has Ray, and another version of it in the folder $OTHER_RAY. Not part of the
default run; pytest is given this file by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table

from tests.frameworks.rays import ADDRESS, Rays, rays_on_machines
from tests.machines import NEEDS_MACHINES, NETWORK, wait_for_end
from tests.plugin.place import KILLED_ONCE, LIMIT_S, Called, Place, scenario, wait_for_ring

pytestmark = NEEDS_MACHINES

# The second rank says that it is there, and ends when somebody answers.
HELD = """
    import os
    if os.environ["RANK"] == "1":
        with open(os.environ["BELL"], "w") as bell:
            bell.write("here")
        with open(os.environ["GO"]) as go:
            go.read()
"""
# Another job of Ray, which has a processor of each of two machines.
BUSY = """
    import sys
    import ray
    from ray.util.placement_group import placement_group

    ray.init(address="auto", log_to_driver=False)
    assert placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD").wait(30)
    print("busy", flush=True)
    sys.stdin.read()
"""
# How many jobs Ray has had so far, this one included.
JOBS = """
    import ray
    from ray._private import state

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    print(len(state.jobs()))
"""
# How much of the resource "slots" nobody has.
SLOTS = """
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    print(ray.available_resources().get("slots", 0))
"""
# Which machine each node is on, and how many slots are left while they run.
PLACED = """
    import subprocess, sys
    import pytest
    from elastic_harness.cluster.process import PIDS_OF_A_MACHINE
    from elastic_harness.history.events import WorkerHello

    def machines(history):
        hellos = history.of_kind(WorkerHello)
        return {hello.node: hello.event.pid // PIDS_OF_A_MACHINE for hello in hellos}

    def slots_left():
        asked = subprocess.run([sys.executable, "slots.py"], capture_output=True, text=True)
        return float(asked.stdout)

    @pytest.mark.elastic(nodes=3, resources={"slots": 1})
    def test_resources(elastic_job):
        job = elastic_job("second_try.py").start()
        job.wait_for_world_size(3)
        assert slots_left() == 0
        assert machines(job.history) == {"n1": 2, "n2": 3, "n3": 2}

    @pytest.mark.elastic(nodes=2, labels={"zone": "b"})
    def test_labels(elastic_job):
        job = elastic_job("hello.py")
        assert slots_left() == 3
        assert job.wait().succeeded and machines(job.history) == {"n1": 3, "n2": 3}

    @pytest.mark.elastic(nodes=2, resources={"slots": 2})
    def test_there_is_not_so_much(elastic_job):
        elastic_job("hello.py").wait()
"""
# An actor stays on a machine; its job ends when Ray tells it that the machine's node is lost.
WATCH = """
    import sys, threading
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self):
            return True

        def stay(self):
            threading.Event().wait()

    def alive():
        return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}

    ray.init(address="auto", log_to_driver=False)
    where = NodeAffinitySchedulingStrategy(alive()[sys.argv[1]], soft=False)
    actor = Actor.options(scheduling_strategy=where).remote()
    assert ray.get(actor.answer.remote())
    print("there", flush=True)
    while True:
        try:
            ray.get(actor.stay.remote())
        except ray.exceptions.ActorUnavailableError:
            continue  # the call was cut off; the next one waits for what becomes of the actor
        except ray.exceptions.ActorDiedError:
            break
    assert sys.argv[1] not in alive()
"""


@pytest.fixture(scope="module")
def rays() -> Iterator[Rays]:
    """The machines, with one processor each: a test that keeps it makes the next one fail."""
    with rays_on_machines(cpus=1) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder for a user's tests, with scripts."""
    made = Place(tmp_path, preload="torch")
    made.add_ini()
    made.add_scripts()
    return made


def test_a_scenario_runs_on_the_machines_of_a_ray_cluster(rays: Rays, place: Place) -> None:
    """A worker is killed there and judged here; logs are here, and nothing is left there."""
    text = scenario("killed", KILLED_ONCE, script="second_try.py", nodes="3", max_restarts=1)
    place.add("killed.elastic.yaml", text)
    called = rays.pytest(place, "-rA", "--elastic-keep=all")
    assert called.outcomes == {"killed": "PASSED"}, called.out
    machines = ", ".join(f"{NETWORK}.{number}" for number in (1, 2, 3))
    assert f"ray cluster (nodes with networks of their own on {machines})" in called.out
    (run,) = place.runs
    logs = place.folder / ".elastic" / run / "logs"
    assert {path.name for path in logs.iterdir()} == {"n1", "n2", "n3"}
    assert rays.left() == []


def test_nodes_are_where_their_resources_and_labels_are(rays: Rays, place: Place) -> None:
    """Others do not get what they have, and Ray has it back after the run."""
    slots = place.add("slots.py", SLOTS)
    place.add("test_placed.py", PLACED)
    called = rays.pytest(place, "-rA", "-p", "no:cacheprovider")
    assert called.outcomes == {
        "test_resources": "PASSED",
        "test_labels": "PASSED",
        "test_there_is_not_so_much": "FAILED",
    }, called.out
    lacking = (
        "cannot start node 'n2': it needs a machine with slots: 2: there is room for 1 such nodes "
        f"(0 on {NETWORK}.1, 1 on {NETWORK}.2, 0 on {NETWORK}.3)"
    )
    assert lacking in " ".join(called.out.split())
    assert float(rays.head.run(sys.executable, str(slots))) == 3
    assert rays.left() == []


def test_what_has_asked_the_machines_also_starts_the_agents(rays: Rays, place: Place) -> None:
    """To start a second driver, and a worker of Ray on each machine, would take seconds."""
    count_jobs = (sys.executable, str(place.add("jobs.py", JOBS)))
    place.add("once.elastic.yaml", scenario("once"))
    before = int(rays.head.run(*count_jobs))
    called = rays.pytest(place, "-rA")
    assert called.outcomes == {"once": "PASSED"}, called.out
    assert int(rays.head.run(*count_jobs)) == before + 2
    assert rays.left() == []


def test_a_pytest_that_starts_no_cluster_keeps_no_processor(rays: Rays, place: Place) -> None:
    """The controller of pytest-xdist asks the machines; its worker needs their only processor."""
    place.add("there.elastic.yaml", scenario("there"))
    called = rays.pytest(place, "-n1", "-rA")
    assert called.outcomes == {"there": "PASSED"}, called.out
    assert rays.left() == []


def test_ray_says_nothing_to_a_job_and_makes_it_wait_for_nobody(rays: Rays, place: Place) -> None:
    """Its variables, its niceness and its order of whom to kill first are not for our nodes."""
    place.add(
        "as_ever.py",
        """
        import os
        assert os.nice(0) == 0
        with open("/proc/self/oom_score_adj") as file:
            assert file.read().strip() == "0"
        assert not [name for name in os.environ if name.startswith("RAY_")]
        """,
    )
    place.add("as_ever.elastic.yaml", scenario("as_ever", script="as_ever.py"))
    called = rays.pytest(place, "-rA", "--elastic-ray-machines=2", address="--elastic-ray=auto")
    assert called.outcomes == {"as_ever": "PASSED"}, called.out
    assert rays.left() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [f"--elastic-ray={NETWORK}.1:6999"],
            f"cannot use the Ray at {NETWORK}.1:6999: nothing answers there (Connection refused)",
        ),
        (
            [f"--elastic-ray={ADDRESS}", "--elastic-ray-machines=4"],
            f"cannot use the Ray at {ADDRESS}: expected 4 machines, found 3 ({NETWORK}.",
        ),
        (["--elastic-ray-machines=4"], f"cannot use the Ray at {ADDRESS}: expected 4 machines"),
    ],
)
def test_a_ray_that_cannot_be_used_is_refused_before_anything_starts(
    rays: Rays, place: Place, arguments: list[str], message: str
) -> None:
    """One error with the reason, exit code 4, nothing left; the address may be Ray's variable."""
    place.environ["RAY_ADDRESS"] = ADDRESS
    rays.check_refused(place, message, *arguments, address="")
    assert rays.left() == []


def test_a_machine_without_a_raylet_is_told_so(rays: Rays, place: Place) -> None:
    """Ray would look for one for a minute."""
    message = "where a raylet runs, or to be given ray://HOST:10001 (Failed to connect"
    rays.check_refused(place, message, on=rays.outside)
    assert rays.left() == []


def test_pytest_may_be_outside(rays: Rays, place: Place) -> None:
    """By Ray's client."""
    place.add("out.elastic.yaml", scenario("out", nodes="3"))
    called = rays.pytest(
        place, "-rA", on=rays.outside, address=f"--elastic-ray=ray://{NETWORK}.1:10001"
    )
    assert called.outcomes == {"out": "PASSED"}, called.out
    rays.check_clean()
    # Ray keeps a server for each client, in case that comes back.
    mode = "--mode=specific-server"
    wait_for_end(
        lambda: [row for row in rays.head.rows() if mode in process_table.command_of(row.pid)],
        within_s=90.0,
    )


def test_a_ray_whose_machines_are_in_use_is_refused(rays: Rays, place: Place) -> None:
    """Other jobs keep what they have; ours waits for ten seconds."""
    busy = place.add("busy.py", BUSY)
    process = subprocess.Popen(
        rays.head.enter(sys.executable, str(busy)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    try:
        message = "no processor on each of 3 machines within 10 s: 1 of its 3 processors are free"
        rays.check_refused(place, message)
    finally:
        process.communicate()
    rays.check_clean()


def test_a_ray_of_another_version_is_refused(rays: Rays, place: Place) -> None:
    """Both versions are named."""
    other = Path(os.environ["OTHER_RAY"])
    (installed,) = other.glob("ray-*.dist-info")
    version = installed.name.removeprefix("ray-").removesuffix(".dist-info")
    rays.start_head(4, cpus=1, path=str(other))
    try:
        address = f"--elastic-ray={NETWORK}.4:6379"
        message = f"Version mismatch: The cluster was started with: Ray: {version}"
        rays.check_refused(place, message, on=rays.outside, address=address)
    finally:
        rays.stop(4, path=str(other))
    rays.check_clean()


def test_doctor_says_what_each_machine_can_do(rays: Rays, place: Place) -> None:
    """Machine by machine, and Ray has its processors back."""
    doctor = (sys.executable, "-m", "pytest_elastic", "doctor", f"--ray={ADDRESS}")
    called = place.call(rays.head.enter(*doctor))
    assert called.code == 0, called.out
    for number in (1, 2, 3):
        assert f"{NETWORK}.{number}: can be used\n  m{number}: Python " in called.out
    assert rays.left() == []


def test_nothing_is_left_anywhere_when_pytest_is_killed(rays: Rays, place: Place) -> None:
    """SIGKILL in the middle of a run: agents end, and Ray has its processors back."""
    bell = place.folder / "bell"
    place.environ["BELL"] = str(bell)
    os.mkfifo(bell)
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    process = place.start_command(rays.command(place, f"--elastic-ray={ADDRESS}"))
    wait_for_ring(bell, process)
    (pytest_,) = process_table.children_of(process.pid)
    os.kill(pytest_, signal.SIGKILL)
    process.communicate()
    rays.check_clean()
    place.add("next.elastic.yaml", scenario("next"))
    called = rays.pytest(place, "next.elastic.yaml")
    assert called.code == 0, called.out


def test_a_run_whose_agent_is_killed_is_unknown(rays: Rays, place: Place) -> None:
    """That is said, and it is no verdict on the job; the next run is well."""
    bell = place.folder / "bell"
    place.environ["BELL"] = str(bell)
    os.mkfifo(bell)
    place.add("a.elastic.yaml", scenario("lost", script="forever.py"))
    place.add("b.elastic.yaml", scenario("next"))
    process = place.start_command(rays.command(place, "-rA", f"--elastic-ray={ADDRESS}"))
    wait_for_ring(bell, process)
    rays.network.machines[1].run("pkill", "-9", "-f", "machines.agent$")
    out, _ = process.communicate(timeout=LIMIT_S)
    called = Called(code=process.returncode, out=out, seconds=0.0)
    assert called.outcomes == {"lost": "FAILED", "next": "PASSED"}, out
    history = next((place.folder / ".elastic").glob("a.elastic.yaml-*/history.jsonl")).read_text()
    assert f"the cluster was lost: the machine {NETWORK}.2 was lost: its agent has ended" in history
    assert "INVALID" not in out
    rays.check_clean()


def test_a_run_outlives_its_raylets_and_its_driver(rays: Rays, place: Place) -> None:
    """Agents are not Ray's: what runs goes on. A later pytest does without the lost machine."""
    for name in ("BELL", "GO"):
        place.environ[name] = str(place.folder / name)
        os.mkfifo(place.environ[name])
    place.add("held.py", HELD)
    place.add("held.elastic.yaml", scenario("held", script="held.py"))
    process = place.start_command(rays.command(place, "-rA", f"--elastic-ray={ADDRESS}"))
    wait_for_ring(place.folder / "BELL", process)
    watch = (sys.executable, str(place.add("watch.py", WATCH)), f"{NETWORK}.2")
    watching = subprocess.Popen(rays.head.enter(*watch), stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stdout.readline() == "there\n"
    rays.network.machines[1].run("pkill", "-9", "-x", "raylet")
    rays.head.run("pkill", "-9", "-f", "machines.ray_driver")
    (place.folder / "GO").write_text("go")
    out, _ = process.communicate(timeout=LIMIT_S)
    called = Called(code=process.returncode, out=out, seconds=0.0)
    assert called.outcomes == {"held": "PASSED"}, out
    watching.communicate(timeout=LIMIT_S)
    assert watching.returncode == 0
    rays.check_clean()
    place.add("next.elastic.yaml", scenario("next"))
    called = rays.pytest(place, "-rA", "next.elastic.yaml")
    assert called.outcomes == {"next": "PASSED"}, called.out
    where = f"{NETWORK}.1, {NETWORK}.3"
    assert f"ray cluster (nodes with networks of their own on {where})" in called.out


def test_without_an_address_there_is_a_ray_for_trying(rays: Rays, place: Place) -> None:
    """On this machine only, and gone with pytest: no process, no file, no token in the home."""
    home = place.folder / "home"
    home.mkdir()
    place.environ.update(HOME=str(home), TMPDIR=rays.folder)
    place.add("a.elastic.yaml", scenario("tried"))
    called = rays.pytest(place, "-rA", on=rays.outside, address="")
    assert called.outcomes == {"tried": "PASSED"}, called.out
    assert "ray cluster (nodes with networks of their own on " in called.out
    assert "elastic-ray-" not in rays.outside.run("ls", "-A", rays.folder)
    assert list(home.iterdir()) == []
    rays.check_clean()


def test_it_is_said_where_ray_is_missing(rays: Rays, place: Place) -> None:
    """With what installs it."""
    broken = place.folder / "broken" / "ray.py"
    broken.parent.mkdir()
    broken.write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    place.environ["PYTHONPATH"] = str(broken.parent)
    rays.check_refused(place, "(No module named 'ray'): pip install 'pytest-elastic[ray]'")
    assert rays.left() == []
