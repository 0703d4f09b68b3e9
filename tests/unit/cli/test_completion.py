"""The command line is completed by a shell, as `register-python-argcomplete` has it do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
LIMIT_S = 60.0
# What bash does at a tab, after `eval "$(register-python-argcomplete pytest-elastic)"`, or pytest.
TAB = """\
eval "$(register-python-argcomplete ${1%% *})"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=63 COMP_WORDS=($1) COMP_CWORD=0
_python_argcomplete ${1%% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""
A_KIND = """\
from elastic_harness.cluster.registry import ClusterKind

def pytest_elastic_register_clusters(registry):
    registry.add(ClusterKind(name="mine", choose=None))
"""


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pytest-elastic ch", {"chaos", "check"}),
        ("pytest-elastic chaos --on", {"--only"}),
        ("pytest-elastic doctor --cluster pro", {"process"}),
        ("pytest --elastic-cluster pro", {"process"}),
        ("pytest --elastic-cluster mi", {"mine"}),
        ("pytest-elastic run --rdzv-back", {"--rdzv-backend"}),
        ("pytest-elastic chaos tr", {"train.py"}),
    ],
)
def test_bash_completes_commands_options_values_and_files(
    tmp_path: Path, typed: str, offered: set[str]
) -> None:
    """A shell of its own, in a folder with a script, and a kind of cluster."""
    assert BASH is not None
    (tmp_path / "train.py").write_text("")
    (tmp_path / "conftest.py").write_text(A_KIND)
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [BASH, "--norc", "-c", TAB, "bash", typed],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert {word.strip() for word in done.stdout.split()} == offered, done.stderr
