"""`pytest-elastic chaos SCRIPT`: a check-up of a real script, as a user types it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_script_that_loses_nothing_passes_and_its_battery_can_be_kept(tmp_path: Path) -> None:
    """The small example, by a command line of torchrun's; what it writes there is the runs' own."""
    shutil.copy(ROOT / "examples" / "minimal.py", tmp_path / "train.py")
    torchrun = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "train.py", "--steps=60"]
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
    (folder,) = (tmp_path / ".elastic").iterdir()
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
    # Of the two runs without a fault, which are side by side, one may find what the other saved.
    expected = {
        2: "train.py did not begin afresh: it found a checkpoint of an earlier run",
        3: "worker-killed: unknown. A worker is killed between two checkpoints. it went on",
    }
    assert expected[elsewhere.returncode] in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input()", "train.py fails without any fault: rank 0 on n1, exit code 1: EOFError"),
        ("print('done')", "train.py ended well, but no step was seen"),
        ("", "train.py ended well, but no step was seen"),
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


def test_a_script_without_torch_is_checked_by_the_steps_it_reports(tmp_path: Path) -> None:
    """What cannot be seen of it is a note; that it saves nothing costs it all steps."""
    (tmp_path / "train.py").write_text(WITHOUT_TORCH)
    words = ["--nodes=1", "--nproc-per-node=2", "--cluster=process", "--jobs=1"]
    done = check_up(*words, "--only=worker-exits,node-silent", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert rows["worker-exits"][0] == "yes (invalid)", done.stdout
    assert "to mend it: Save more often" in done.stdout
    assert rows["node-silent"][0] == "skipped"
    assert "Note: checkpoints: no checkpoint was seen" in done.stdout
    assert "If the script saves elsewhere, by an absolute path" in " ".join(done.stdout.split())


def test_a_terminal_shows_what_is_under_way(tmp_path: Path) -> None:
    """In its last line, with seconds; without a terminal no control character is printed."""
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
    piped = check_up(*words, cwd=tmp_path)
    assert "  worker-exits: invalid" in piped.stdout
    assert piped.stdout.replace("\n", "").isprintable()


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
        (["--only=worker-kiled", "train.py"], "there is no such test: worker-killed, "),
        (["--nodes=0", "train.py"], "a whole number of at least 1 is expected"),
        (["torchrun", "--no-python", "ls"], "follows what Python runs"),
    ],
)
def test_a_wrong_command_line_is_told_so(tmp_path: Path, words: list[str], said: str) -> None:
    """Before anything is run."""
    (tmp_path / "train.py").write_text("")
    done = check_up(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / ".elastic").exists()
