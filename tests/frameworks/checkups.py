"""The check-up of an ordinary script of each framework: `tox -e frameworks`.

The scripts are written as their frameworks' documentation says, and the commands are those of
docs/frameworks/, whose pages tell what each script loses, and why.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.frameworks.jobs import LIMIT_S
from tests.house.test_documents import ROOT
from tests.integration.test_checkup import check_up, rows_of

ROWS = "worker-killed,preempted,killed-while-saving,checkpoint-torn"


def shown_on(page: str, folder: Path) -> list[str]:
    """Copy the script of a page as the page does; return what stands behind `chaos` there."""
    text = (ROOT / "docs" / "frameworks" / f"{page}.md").read_text(encoding="utf-8")
    ((source, command),) = re.findall(
        r"^cp (\S+) \S+/train\.py\ncd \S+\npytest-elastic chaos (.+)$", text, re.MULTILINE
    )
    shutil.copy(ROOT / source, folder / "train.py")
    return shlex.split(command)


@pytest.mark.parametrize(
    ("page", "without", "survived", "said"),
    [
        (
            "fsdp2",
            [],
            ["yes", "yes (invalid)", "yes", "NO"],
            ["CheckpointException", "Handle SIGTERM", "in samples, not in steps"],
        ),
        (
            "lightning",
            [],
            ["yes (invalid)", "yes (invalid)", "NO", "NO"],
            [
                "epoch 3 used 180 samples more than once",
                "Save the place in the data",
                "resume from the newest one that is complete",
            ],
        ),
        (
            "accelerate",
            ["--seedable-sampler"],
            ["yes (invalid)", "yes (invalid)", "NO", "NO"],
            ["so do the random numbers of torch", "RandomSampler is not known"],
        ),
        (
            "accelerate",
            [],
            ["yes", "yes (invalid)", "NO", "NO"],
            ["resume from the newest one that is complete"],
        ),
        (
            "transformers",
            [],
            ["yes", "yes (invalid)", "NO", "NO"],
            ["resume from the newest one that is complete", "trainer_state.json"],
        ),
    ],
)
def test_the_card_of_a_framework_is_true(
    page: str, without: Sequence[str], survived: Sequence[str], said: Sequence[str], tmp_path: Path
) -> None:
    """What it loses is found out, and nothing else is said to be lost."""
    words = [word for word in shown_on(page, tmp_path) if word not in without]
    done = check_up(f"--only={ROWS}", *words, cwd=tmp_path, limit_s=LIMIT_S)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert [rows[row][0] for row in ROWS.split(",")] == survived, done.stdout
    assert [each for each in said if each not in text] == [], done.stdout
    assert "unknown" not in text.partition(" test ")[0]


def test_the_steps_of_plain_sgd_are_known(tmp_path: Path) -> None:
    """Its optimizer counts none; its parameters tell where it goes on."""
    words = shown_on("ddp", tmp_path)
    only = "--only=worker-killed,killed-while-saving"
    done = check_up(only, *words, cwd=tmp_path, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(cells[0] == "yes" for cells in rows_of(done.stdout).values())
