"""A failure tells its cause: what the first failed rank said, and where ranks stand that hang."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.plugin.place import Called, Place, scenario

GROUP = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
"""

SCRIPTS = {
    "in_use.py": GROUP
    + """
import socket

def serve(address):
    server = socket.socket()
    server.bind(address)

taken = socket.socket()
taken.bind(("127.0.0.1", 0))
if rank == 1:
    serve(taken.getsockname())
dist.all_reduce(torch.ones(1))
""",
    "refuses.py": """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.parse_args()
""",
    "stuck.py": GROUP
    + """
def step():
    dist.all_reduce(torch.ones(1))

def save(path):
    with open(path, "w") as file:
        file.write("nobody reads this")

step()
if rank == 2:
    os.mkfifo("pipe")
    save("pipe")
step()
""",
    # Without torch, for launchers under which it would be imported anew in each worker.
    "no_file.py": """
def load():
    return open("no/such/file")

load()
""",
    "waits.py": """
import time

def wait():
    time.sleep(600)

wait()
""",
}

SCREENS = {
    "in-use": r"""
INVALID: job: succeeded
  some.elastic.yaml:\d+:\d+
  \d+ | .*
  +| +\^+
  the job failed, it should have succeeded: rank \d on n\d failed .*
  .*

        n1 +n2
( +\d+\.\d\d .*
)+ +\d+\.\d\d  rank 1 raised OSError: .*
( +\d+\.\d\d .*
)+
last seen      round 1 on n1, n2: 4 of 4 ranks said hello, 0 alive, no step done
first failure  rank 1 on n1(, exit code 1)?: OSError: \[Errno 98\] Address already in use
                 File "\S+/in_use.py", line 17, in <module>
                   serve\(taken.getsockname\(\)\)
                 File "\S+/in_use.py", line 12, in serve
                   server.bind\(address\)
run directory  .*
again          pytest .*
""",
    "refuses": r"""
INVALID: job: succeeded
  some.elastic.yaml:\d+:\d+
  \d+ | .*
  +| +\^+
  the job failed, it should have succeeded: rank 0 on n1 failed \(exit code 2\), and no restart is
  allowed .*

        n1
( +\d+\.\d\d .*
)+
last seen      round 1 on n1: 1 of 1 ranks said hello, 0 alive, no step done
first failure  rank 0 on n1, exit code 2
               usage: refuses.py \[-h\] \[--steps STEPS\]
               refuses.py: error: unrecognized arguments: --stepz=40
run directory  .*
again          pytest .*
""",
    "stuck": r"""
INVALID: ends_in_time
  the job did not end within 6s: round 1, 4 of 4 ranks \(4 alive\), no step done
INVALID: job: succeeded: the job did not end within 6 s
UNKNOWN: no_survivors: the run was over before any launcher had ended

        n1 +n2
( +\d+\.\d\d .*
)+
last seen      round 1 on n1, n2: 4 of 4 ranks said hello, 0 alive, no step done
where it hangs rank 2 on n2, not in the collective: stuck.py:12 in save: with open\(path, "w"\) as
                 file:
               ranks 0-1, 3, in a collective: stuck.py:9 in step: dist.all_reduce\(torch.ones\(1\)\)
run directory  .*
again          pytest .*
""",
}


def _with_two_each(text: str) -> str:
    return text.replace("max_restarts: 0}", "max_restarts: 0, nproc_per_node: 2}")


SCENARIOS = (
    _with_two_each(scenario("in-use", script="in_use.py")),
    _with_two_each(scenario("stuck", "limit: 6s", script="stuck.py")),
    scenario("refuses", script="refuses.py", nodes="1").replace(
        "refuses.py,", "refuses.py, args: [--stepz=40],"
    ),
)
WITHOUT_TORCH = (
    scenario("no-file", script="no_file.py", nodes="1"),
    # Under torchrun torch is imported anew, which takes long where others have the processor.
    scenario("waits", "limit: 15s", script="waits.py", nodes="1"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a folder with all scripts."""
    place = Place(tmp_path_factory.mktemp("causes"))
    place.add_ini()
    for name, text in SCRIPTS.items():
        place.add(name, text)
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run what needs torch once, with warm workers."""
    place.add("some.elastic.yaml", "---\n".join(SCENARIOS))
    return place.pytest("some.elastic.yaml")


@pytest.mark.parametrize("test", list(SCREENS))
def test_the_screen_says_why(called: Called, test: str) -> None:
    """All of it: the cause is below what happened, and above what is to be copied.

    Whose end the launcher sees first, and stops the others for, is left to chance.
    """
    about = called.about(test).strip()
    # Python 3.11 underlines what it has called; 3.10 does not.
    about = re.sub(r"\n +[~^]+(?=\n +File|\nrun directory)", "", about)
    pattern = SCREENS[test].strip().replace("|", r"\|")
    assert re.fullmatch(pattern, about), about
    assert len(about.splitlines()) <= 45


@pytest.mark.parametrize(
    "launcher", [pytest.param("torchrun", marks=pytest.mark.slow), "pytest-elastic"]
)
def test_workers_that_are_started_afresh_say_why_too(place: Place, launcher: str) -> None:
    """Under torchrun, which says nothing of exit codes, and where ours execs each worker."""
    place.add("afresh.elastic.yaml", "---\n".join(WITHOUT_TORCH))
    options = [f"--elastic-launcher={launcher}"]
    if launcher == "pytest-elastic":
        options.append("--elastic-preload=")
    called = place.pytest("afresh.elastic.yaml", "-n0", *options)
    code = ", exit code 1" if launcher == "pytest-elastic" else ""
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/file'"
    told = " ".join(called.about("no-file").split())
    assert f"first failure rank 0 on n1{code}: {missing}" in told
    assert 'no_file.py", line 2, in load' in called.about("no-file")
    hangs = "where it hangs rank 0 on n1: waits.py:4 in wait: time.sleep(600)"
    assert hangs in called.about("waits")


@pytest.mark.parametrize("how", ["sys.exit(3)", "os.kill(os.getpid(), 11)"])
def test_a_launcher_that_keeps_silent_of_exit_codes_does_not_hide_them(
    tmp_path: Path, how: str
) -> None:
    """As a shell script does that ends with 0 whatever its program ended with."""
    place = Place(tmp_path)
    place.add_ini()
    place.add("ends.py", f"import os, sys\n{how}\n")
    told = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=9"
    place.add("quiet.sh", f'{told} {shlex.quote(sys.executable)} "$@"\nexit 0\n')
    job = f'launcher: "sh {place.folder}/quiet.sh $program"'
    text = scenario("quiet", script="ends.py", nodes="1")
    place.add("some.elastic.yaml", text.replace("max_restarts: 0", f"max_restarts: 0, {job}"))
    called = place.pytest("some.elastic.yaml", "--elastic-cluster=process")
    about = " ".join(called.about("quiet").split())
    ended = "exit code 3" if "exit" in how else "SIGSEGV"
    assert "UNKNOWN: job: succeeded" in about
    assert f"rank 0 on n1 ended with {ended}, no round came after that" in about
    assert f"first failure rank 0 on n1, {ended}" in about


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a mount of its own"
)
def test_a_full_disk_is_named_and_hides_nothing(tmp_path: Path) -> None:
    """It is no defect of pytest-elastic, and what the job did until then is shown."""
    place = Place(tmp_path)
    place.add_ini()
    place.add("talks.py", "for number in range(9999): print('hello number', number)")
    place.add(
        "test_some.py",
        """
        def test_a_job(elastic_job):
            elastic_job("talks.py").wait()
        """,
    )
    (place.folder / ".elastic").mkdir()
    mounted = "mount -t tmpfs -o size=64k tmpfs .elastic && exec "
    pytest_here = f"{shlex.quote(sys.executable)} -m pytest --elastic-cluster=process"
    done = place.call(["unshare", "--mount", "sh", "-c", mounted + pytest_here])
    assert done.code == 1
    assert "history.jsonl: No space left on device" in done.out
    assert "Make room, or choose another folder" in done.out
    assert re.search(r"first failure  rank \d on n\d.*: OSError: .* No space left", done.out)
    assert "This is a bug" not in done.out


def test_a_folder_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    """As one that was made under a Latin-1 locale: the run is judged, and its page is written."""
    place = Place(tmp_path / os.fsdecode(b"caf\xe9"))
    place.folder.mkdir()
    place.add_ini()
    place.add_scripts()
    place.add(
        "test_some.py",
        """
        def test_a_job(elastic_job):
            elastic_job("exits_3.py").wait()
            assert False, "to keep the run"
        """,
    )
    pytest_here = [sys.executable, "-m", "pytest", "--elastic-cluster=process"]
    place.call(["sh", "-c", 'exec "$@" >said 2>&1', "sh", *pytest_here])
    said = (place.folder / "said").read_text(errors="replace")
    assert re.search(r"first failure  rank \d on n\d.*exit code 3", said), said
    assert "elastic: 1 run: 1 invalid: .elastic/index.html" in said
    assert list(place.folder.glob(".elastic/*/timeline.html"))


def test_what_ends_a_test_that_waits_shows_where_its_job_hangs(tmp_path: Path) -> None:
    """As pytest-timeout does: by a signal handler that raises, in the main thread."""
    place = Place(tmp_path)
    place.add_ini()
    place.add("stays.py", "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n")
    place.add(
        "test_some.py",
        """
        import os, signal
        import pytest

        def end_once_it_waits(*_):
            if os.path.exists("it_waits"):
                signal.setitimer(signal.ITIMER_REAL, 0)
                pytest.fail("the time is over")

        def test_hangs(elastic_job):
            job = elastic_job("stays.py", os.path.abspath("it_waits"), nodes=1, max_restarts=0)
            signal.signal(signal.SIGALRM, end_once_it_waits)
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.1)
            job.wait()
        """,
    )
    called = place.pytest("--elastic-cluster=process")
    about = " ".join(called.about("test_hangs").split())
    assert "INVALID: test test_hangs Failed: the time is over" in about
    assert re.search(r"where it hangs rank 0 on n1: stays.py:[23] in <module>: ", about)


def test_the_cause_is_shown_in_a_unittest_too(tmp_path: Path) -> None:
    """Its methods let nothing out; a skipped one leaves no run."""
    place = Place(tmp_path)
    place.add_ini()
    place.add("loop.py", "raise ValueError('planted')")
    place.add(
        "test_some.py",
        """
        import unittest
        import pytest

        class TestCase(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def give(self, elastic_job):
                self.job = elastic_job("loop.py", nodes=1, max_restarts=0)

            def test_fails(self):
                self.assertTrue(self.job.wait().succeeded)

            def test_skips(self):
                self.job.start()
                self.skipTest("not today")
        """,
    )
    called = place.pytest("-rA")
    assert called.outcomes["test_fails"] == "FAILED", called.out
    about = called.about("TestCase.test_fails")
    assert "rank 0 on n1, exit code 1: ValueError: planted" in about
    assert "again          pytest test_some.py::TestCase::test_fails --elastic-seed=" in about
    assert "elastic: 1 run: 1 invalid" in called.out
