"""`pytest-elastic chaos SCRIPT`: a check-up of a real script, as a user types it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.server.server_process import VARIABLE, sharing_one_interpreter
from elastic_harness.scenario.launchers import modules_to_preload

from tests.cluster_bench import ROOT

LIMIT_S = 240.0
# Steps without torch, slow enough for a fault in the middle.
WITHOUT_TORCH = """\
import sys, time
from elastic_harness.observe import report_step
for step in range(1, 31):
    time.sleep(0.02)
    report_step(step)
"""
# It saves by names relative to its working folder, into a folder of its own.
SAVES = """\
import os, time
from elastic_harness.observe import report_resume, report_step
done = 0
if os.path.exists("saved/last.bin"):
    with open("saved/last.bin", "rb") as file:
        done = int(file.read(8))
report_resume(done)
for step in range(done + 1, 41):
    time.sleep(0.02)
    report_step(step)
    if step % 5 == 0:
        os.makedirs("saved", exist_ok=True)
        with open("saved/last.tmp", "wb", buffering=0) as file:
            file.write(b"%8d" % step + bytes(4000))
        os.replace("saved/last.tmp", "saved/last.bin")
"""


@pytest.fixture(scope="module", autouse=True)
def one_interpreter() -> Iterator[None]:
    """Import torch once for all check-ups of a file."""
    with sharing_one_interpreter(modules_to_preload()):
        yield


def check_up(*words: str, cwd: Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_elastic", "chaos", *words],
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the card's cells by the test's name."""
    table = text.partition("left behind\n")[2].partition("\n\n")[0]
    lines = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    return {name: cells for name, *cells in lines}


def test_a_script_that_loses_nothing_passes_and_its_battery_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small example, by a command line of torchrun's; what it writes there is the runs' own.

    With an interpreter of its own, as a user has it.
    """
    monkeypatch.delenv(VARIABLE)
    shutil.copy(ROOT / "examples" / "minimal.py", tmp_path / "train.py")
    # So many that it is still in the first half when its first checkpoint is seen, a little later.
    torchrun = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "train.py", "--steps=240"]
    only = "--only=worker-killed,checkpoint-torn"
    done = check_up(only, "--save=battery", *torchrun, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert rows.pop("uninterrupted") == ["yes", "-", "0", "0", "0", "-", "nothing"]
    assert set(rows) == {"worker-killed", "checkpoint-torn"}, done.stdout
    for survived, pause, lost, *samples, state, left in rows.values():
        assert (survived, samples, left) == ("yes", ["0", "0"], "nothing")
        assert float(pause.removesuffix(" s")) > 0
        assert 0 < int(lost) <= 12
        assert state in ("same", "within 1e-06")
    kept = {path.name.partition(".")[0] for path in (tmp_path / "battery").iterdir()}
    assert kept == {"uninterrupted", "worker-killed", "checkpoint-torn"}
    assert "pytest battery" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [".elastic", "battery", "train.py"]
    (folder,) = (tmp_path / ".elastic").glob("[!.]*")
    assert "Check-up of train.py: 3 valid" in (folder / "card.txt").read_text()


@pytest.mark.parametrize("where", ["saved/", ""])
def test_a_script_that_saves_by_a_relative_name_is_killed_in_the_middle_of_it(
    tmp_path: Path, where: str
) -> None:
    """In a folder below its working folder, or right there."""
    makes = 'os.makedirs("saved", exist_ok=True)'
    assert makes in SAVES
    script = SAVES if where else SAVES.replace(makes, "pass").replace("saved/", "")
    (tmp_path / "train.py").write_text(script)
    done = check_up("--nodes=1", "--only=killed-while-saving", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_of(done.stdout)["killed-while-saving"][0] == "yes"


@pytest.mark.slow
def test_an_absolute_path_in_the_working_folder_is_that_of_the_runs_copy(tmp_path: Path) -> None:
    """An argument that names it leads to the copy; what lies elsewhere is seen to be shared."""
    script = SAVES.replace("import os,", "import os, sys,").replace('"saved', 'sys.argv[1] + "')
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text(script)
    words = ["--nodes=1", "--cluster=process", "--jobs=2", "--only=worker-killed", "train.py"]
    here = check_up(*words, f"{tmp_path}/here/saved", cwd=tmp_path / "here")
    assert here.returncode == 0, here.stdout + here.stderr
    assert "saves saved/last.bin every 5 steps" in here.stdout
    assert not (tmp_path / "here" / "saved").exists()
    elsewhere = check_up(*words, f"{tmp_path}/elsewhere", cwd=tmp_path / "here")
    told = " ".join((elsewhere.stdout + elsewhere.stderr).split())
    # Of the two runs without a fault, which are side by side, one may find what the other saved:
    # in the middle, or at the end, where it has no step left to do.
    expected = {
        2: "checkpoint of an earlier run",
        3: "worker-killed: unknown. A worker is killed between two checkpoints. it went on",
    }
    assert expected[elsewhere.returncode] in told


def test_a_checkpoint_of_an_earlier_run_is_left_out_where_the_user_says_so(tmp_path: Path) -> None:
    """The folder is named where the script was seen to write to it."""
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "saved").mkdir()
    old = b"%8d" % 5 + bytes(4000)
    (tmp_path / "saved" / "last.bin").write_bytes(old)
    words = ["--nodes=1", "--only=worker-killed", "train.py"]
    refused = check_up(*words, cwd=tmp_path)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "train.py did not begin afresh" in refused.stderr
    assert "--leave-out=saved leaves old files out" in refused.stderr
    done = check_up(f"--leave-out={tmp_path}/saved", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "saved" / "last.bin").read_bytes() == old


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_checkpoint_of_the_users_own_is_not_overwritten(
    tmp_path: Path, *, is_linked: bool
) -> None:
    """In a folder that an argument names, or one that the working folder has a link to."""
    (here := tmp_path / "here").mkdir()
    (own := tmp_path / "own").mkdir()
    (own / "last.tmp").write_bytes(b"mine")
    (here / "saved").symlink_to(own)
    where = "saved" if is_linked else str(own)
    script = SAVES.replace("import os,", "import os, sys,").replace('"saved', 'sys.argv[1] + "')
    (here / "train.py").write_text(script)
    done = check_up("--nodes=1", "--only=worker-killed", "train.py", where, cwd=here)
    assert done.returncode == 2, done.stdout + done.stderr
    told = " ".join(done.stderr.split())
    assert "In a check-up it may read, and not write" in told
    assert sorted(path.name for path in own.iterdir()) == ["last.tmp"]
    assert (own / "last.tmp").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input()", "train.py fails without any fault: rank 0 on n1, exit code 1: EOFError"),
        ("print('done')", "train.py ended well, but no step was seen"),
        (
            "open('train.csv')",
            "train.py fails without any fault: rank 0 on n1, exit code 1: File",
        ),
        (
            "import os, sys; os.execv(sys.executable, ['python3', '-m', 'nowhere'])",
            "python3: No module named nowhere",
        ),
        ("import time; time.sleep(600)", "train.py had not ended by its limit, without any fault"),
    ],
)
def test_a_script_that_cannot_be_checked_is_told_so_in_one_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    """After the run without any fault; nothing else is tried."""
    (tmp_path / "train.py").write_text(text)
    words = ["--nodes=1", "--cluster=process", "--jobs=1", "--limit=8s", "train.py"]
    done = check_up(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_option_behind_the_script_is_said_to_be_the_scripts(tmp_path: Path) -> None:
    """Where the script refuses it, which is how most people meet it."""
    (tmp_path / "train.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    words = ["--nodes=1", "--cluster=process", "--jobs=1", "python", "train.py", "--only=preempted"]
    done = check_up(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "train.py: error: unrecognized arguments: --only=preempted" in done.stderr
    assert "--only stands behind the script, which gets it" in done.stderr


def test_a_script_without_torch_is_checked_by_the_steps_it_reports(tmp_path: Path) -> None:
    """What cannot be seen of it is a note; that it saves nothing costs it all steps.

    Where there is no terminal, no control character is printed.
    """
    (tmp_path / "train.py").write_text(WITHOUT_TORCH)
    words = ["--nodes=1", "--nproc-per-node=2", "--cluster=process", "--jobs=1"]
    done = check_up(*words, "--only=worker-exits,node-silent", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "  worker-exits: invalid" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    rows = rows_of(done.stdout)
    assert rows["worker-exits"][0] == "yes (invalid)", done.stdout
    assert "to mend it: Save more often" in done.stdout
    assert rows["node-silent"][0] == "skipped"
    assert "Note: checkpoints: no checkpoint was seen" in done.stdout
    assert "If the script saves elsewhere, by an absolute path" in " ".join(done.stdout.split())


def test_what_three_ranks_add_up_ends_with_the_same_to_the_bit(tmp_path: Path) -> None:
    """DDP's buckets of before and after a restart would add gradients in another order.

    Its checkpoints have a digest in their names.
    """
    shutil.copy(ROOT / "examples/train.py", tmp_path)
    words = ["--nodes=1", "--nproc-per-node=3", "--cluster=process", "--only=worker-killed"]
    done = check_up(*words, "train.py", "--steps=30", "--checkpoint-every=6", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "saves checkpoints/checkpoint-*-*-*.pt every 6 steps" in done.stdout
    assert "same" in rows_of(done.stdout)["worker-killed"], done.stdout


def test_the_undisturbed_part_can_be_run_alone(tmp_path: Path) -> None:
    """By the name that its row has; with what the command line of torchrun says of the job."""
    (tmp_path / "train.py").write_text(WITHOUT_TORCH)
    words = ["--only=uninterrupted", "--nodes=1", "--cluster=process", "--save=battery"]
    torchrun = ["torchrun", "--max-restarts=5", "--rdzv-conf=join_timeout=9", "--role=trainer"]
    done = check_up(*words, *torchrun, "train.py", cwd=tmp_path)
    assert set(rows_of(done.stdout)) == {"uninterrupted"}, done.stdout + done.stderr
    assert "Note: not taken over from the command line: --role (" in done.stdout
    (kept,) = (tmp_path / "battery").iterdir()
    assert "  max_restarts: 5\n" in kept.read_text()
    assert "    conf: {join_timeout: '9'}\n" in kept.read_text()


def test_a_terminal_shows_what_is_under_way(tmp_path: Path) -> None:
    """In its last line, with seconds."""
    (tmp_path / "train.py").write_text(WITHOUT_TORCH.replace("0.02", "0.1"))
    words = ["--nodes=1", "--cluster=process", "--jobs=1", "--only=worker-exits", "train.py"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest_elastic", "chaos", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs) as started:
        os.close(theirs)
        seen = b""
        try:
            while chunk := _read(ours):
                seen += chunk
        finally:
            started.kill()
            os.close(ours)
    text = seen.decode()
    assert re.search(r"\r\x1b\[K  under way: uninterrupted\S* \d+ s", text), text
    assert re.search(r"\r\x1b\[K  under way: worker-exits \d+ s", text), text
    assert "\r\x1b[K  worker-exits: invalid" in text
    assert "\x1b" not in text.partition("Check-up of")[2], "the card is plain"


def _read(terminal: int) -> bytes:
    """Return what was written to a terminal; nothing once its other side is closed."""
    if not select.select([terminal], [], [], LIMIT_S)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--only=worker-kiled", "train.py"], "no test 'worker-kiled': known are uninterrupted, "),
        (["--only=", "train.py"], "no test is named: known are uninterrupted, worker-killed, "),
        (["--tolerance=-1", "train.py"], "--tolerance: '-1': a number from 0 to 1 is expected"),
        (["--observe-step=(", "train.py"], "--observe-step: '(' is not a regular expression"),
        (["--patience=0", "train.py"], "--patience: '0': a number from 1 to 1000 is expected"),
        (
            ["--nodes=2", "torchrun", "--nnodes=3", "train.py"],
            "--nodes=2 and --nnodes=3 contradict each other",
        ),
        (["--nodes=0", "train.py"], "a whole number of at least 1 is expected"),
        (["--limit=3", "train.py"], "'3' is not a duration: write for example 10s, 500ms or 2m"),
        (["python3", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["torchrun", "--no-python", "ls"], "follows what Python runs"),
        (["--leave-out=a,/tmp", "train.py"], "--leave-out=/tmp is no file or folder below the"),
        (["--leave-out=../a", "train.py"], "--leave-out=../a is no file or folder below the"),
        (
            ["--observe-step=(x)", "a.elastic.yaml"],
            "--observe-step is for the check-up of a script",
        ),
        (["--jobs=2", "."], "--jobs is for the check-up of a script, and . is scenarios"),
    ],
)
def test_a_wrong_command_line_is_told_so(tmp_path: Path, words: list[str], said: str) -> None:
    """Before anything is run."""
    (tmp_path / "train.py").write_text("")
    done = check_up(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / ".elastic").exists()
