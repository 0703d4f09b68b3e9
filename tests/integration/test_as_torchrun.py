"""Tools that start torchrun by themselves start our launcher: by a shim, or by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

LIMIT_S = 120.0
LAUNCH = (sys.executable, "-m", "torch.distributed.launch")
AS_TORCHRUN = {"PYTEST_ELASTIC_AS_TORCHRUN": "1"}
LEAN = {"PET_PRELOAD": ""}
# A round is what our launcher tells a worker, and torchrun does not.
SCRIPT = """\
import os, sys
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
own = os.environ.get("PYTEST_ELASTIC_ROUND", "none")
os.write(1, f"rank {rank} of {world} round {own} {sys.argv[1:]}\\n".encode())
"""
FAILS = "import sys; sys.exit(17)\n"
CALLS = """\
import torch.distributed.run as torchrun
torchrun.main(["--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1",
               "script.py", "--lr", "0.1"])
print("main returned", flush=True)
words = ["--nproc_per_node", "2", "script.py", "--lr", "0.1"]
args = torchrun.get_args_parser().parse_args(words)
args.max_restarts = 1
args.node_rank = 0
torchrun.run(args)
print("run returned")
"""
RAISES = """\
import torch.distributed.run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
try:
    torchrun.main(["--nproc-per-node=1", "fails.py"])
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    print(rank, failure.local_rank, failure.exitcode, failure.pid > 0, failure.signal_name())
"""
EXPECTED = [f"rank {rank} of 2 round 1 ['--lr', '0.1']" for rank in (0, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the programs."""
    texts = {"script": SCRIPT, "fails": FAILS, "calls": CALLS, "raises": RAISES}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def run(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), **LEAN, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def install_shim(folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Call the command that writes the shim."""
    return run(folder, sys.executable, "-m", "pytest_elastic", "install-shim", str(into))


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what workers printed, and the caller after them."""
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_the_shim_is_the_torchrun_that_a_shell_finds(folder: Path) -> None:
    """As LLaMA-Factory and torchtitan's script start it; a blank in the path does no harm."""
    shims = folder / "my shims"
    installed = install_shim(folder, shims)
    assert lines(installed)[0].endswith(f"export PATH='{shims}':\"$PATH\"")
    environ = {"PATH": f"{shims}:{os.environ['PATH']}"}
    command = "torchrun --nproc-per-node=2 script.py --lr 0.1"
    assert lines(run(folder, "sh", "-c", command, environ=environ)) == EXPECTED
    assert install_shim(folder, shims).returncode == 0, "it may replace its own"
    failed = run(folder, "sh", "-c", "torchrun fails.py", environ=environ)
    assert failed.returncode == 1, failed.stderr


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_the_shim_replaces_no_other_torchrun(kind: str, folder: Path) -> None:
    """A folder of an environment has torch's own."""
    torchs = folder / "torchrun"
    if kind == "file":
        torchs.write_text("#!/bin/sh\necho theirs\n")
    else:
        torchs.symlink_to("elsewhere")
    refused = install_shim(folder, folder)
    assert refused.returncode == 2
    assert f"{torchs} is another torchrun" in refused.stderr
    assert torchs.is_symlink() or "theirs" in torchs.read_text()


@pytest.mark.parametrize(
    "command",
    [
        (f"{os.path.dirname(sys.executable)}/torchrun", "--nproc-per-node=2", "script.py"),
        (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "script.py"),
        (*LAUNCH, "--use-env", "--nproc-per-node=2", "script.py"),
    ],
    ids=["torchrun", "-m run", "-m launch"],
)
def test_a_variable_makes_torchs_launcher_ours(command: tuple[str, ...], folder: Path) -> None:
    """By its command, and by its modules."""
    assert lines(run(folder, *command, "--lr", "0.1", environ=AS_TORCHRUN)) == EXPECTED


def test_a_variable_makes_torchs_functions_ours(folder: Path) -> None:
    """Where a tool calls them, one after the other: each returns."""
    done = run(folder, sys.executable, "calls.py", environ=AS_TORCHRUN)
    main, _, rest = done.stdout.partition("main returned\n")
    assert sorted(main.splitlines()) == EXPECTED, done.stderr
    assert [*sorted(rest.splitlines()[:-1]), rest.splitlines()[-1]] == [*EXPECTED, "run returned"]
    assert done.returncode == 0


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_variable_torchs_launcher_is_torchs(value: str, folder: Path) -> None:
    """Nothing of ours is even loaded."""
    code = (
        "import sys; print(*(name for name in sys.modules if 'elastic' in name)); "
        "import torch.distributed.run as r; print(r.main.__module__, r.run.__code__.co_filename)"
    )
    done = run(folder, sys.executable, "-c", code, environ={"PYTEST_ELASTIC_AS_TORCHRUN": value})
    loaded, torchs = done.stdout.splitlines()
    assert loaded == ""
    assert torchs.endswith("torch/distributed/run.py")


@pytest.mark.parametrize("environ", [{}, AS_TORCHRUN], ids=["torchrun", "ours"])
def test_a_failure_is_raised_as_torch_raises_it(environ: dict[str, str], folder: Path) -> None:
    """A caller that catches ChildFailedError reads the same of both launchers."""
    done = run(folder, sys.executable, "raises.py", environ=environ)
    assert done.stdout == "0 0 17 True <N/A>\n", done.stderr


def test_old_scripts_get_their_local_rank(folder: Path) -> None:
    """torch.distributed.launch without --use-env gives an argument."""
    command = ("-m", "torch.distributed.launch", "--nproc-per-node=2", "script.py", "--lr")
    found = lines(run(folder, sys.executable, *command, environ=AS_TORCHRUN))
    assert found == [f"rank {r} of 2 round 1 ['--local-rank={r}', '--lr']" for r in (0, 1)]


def test_a_wrong_option_ends_the_caller_with_our_exit_code(folder: Path) -> None:
    """As argparse does in torch."""
    done = run(
        folder,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=x",
        "script.py",
        environ=AS_TORCHRUN,
    )
    assert done.returncode == 2
    assert "--nnodes='x' is not a number of nodes" in done.stderr
    assert "Traceback" not in done.stderr
