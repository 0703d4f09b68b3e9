"""What `--nproc-per-node=auto` and its kin mean, with a torch in place of the one that has devices.

No accelerator is here: what is played is only the answer of `import torch` in a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_elastic.cli.devices import count_devices
from pytest_elastic.errors import Unavailable, UsageError

TORCH = """
import time
print("some backend: initialised, 99 problems")
class accelerator:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: {count})
cuda = xpu = accelerator
{more}
"""


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A folder in the place of /dev."""
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, *, count: int = 8, more: str = "") -> None:
    """Put a torch with so many devices before the real one."""
    package = folder / "played"
    package.mkdir()
    text = TORCH.format(available=count > 0, count=count, more=more)
    (package / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package))


def test_without_a_device_there_is_a_worker_for_each_processor(dev: Path) -> None:
    """Torch is not asked, which would take seconds."""
    processors = len(os.sched_getaffinity(0))
    assert count_devices("auto", dev=str(dev)) == processors
    assert count_devices("cpu", dev=str(dev)) == processors
    with pytest.raises(UsageError, match="--nproc-per-node=gpu: torch finds no such device"):
        count_devices("gpu", dev=str(dev))


@pytest.mark.parametrize(
    "name",
    ["nvidiactl", "nvidia0", "kfd", "dri", "dxg", "davinci0", "davinci_manager", "accel",
     "accel0", "nvhost-ctrl-gpu", "nvmap", "cambricon_dev0", "mtgpu.0"],
)  # fmt: skip
def test_torch_is_asked_where_the_kernel_shows_an_accelerator(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of whatever make; what backends print before the answer is passed over."""
    play(tmp_path, monkeypatch)
    (dev / name).touch()
    assert count_devices("auto", dev=str(dev)) == 8


def test_a_package_that_brings_a_backend_is_asked_for(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices may have any name."""
    play(tmp_path, monkeypatch, count=3)
    info = tmp_path / "played" / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntheirs = theirs:load\n")
    monkeypatch.syspath_prepend(str(tmp_path / "played"))
    assert count_devices("auto", dev=str(dev)) == 3


def test_an_accelerator_that_cannot_be_used_leaves_the_processors(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has it, torch was built for another."""
    play(tmp_path, monkeypatch, count=0)
    (dev / "kfd").touch()
    assert count_devices("auto", dev=str(dev)) == len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match="torch finds no such device"):
        count_devices("gpu", dev=str(dev))


def test_a_driver_that_does_not_answer_is_no_mistake_of_the_users(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3: another node, or another day, may do."""
    play(tmp_path, monkeypatch, more="time.sleep(600)")
    (dev / "nvidia0").touch()
    with pytest.raises(Unavailable, match="a driver does not answer") as caught:
        count_devices("auto", dev=str(dev), limit_s=0.5)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("raise OSError('libcuda.so.1: cannot open shared object file')", "OSError: libcuda.so.1"),
        (
            "accelerator.device_count = staticmethod(lambda: 'many')",
            "a number was expected, and it printed 'many'",
        ),
        ("import os; os._exit(0)", "a number was expected, and it printed"),
    ],
)
def test_a_torch_that_cannot_be_asked_is_told_with_its_words(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, said: str
) -> None:
    """The last line of what it says."""
    play(tmp_path, monkeypatch, more=more)
    (dev / "nvidia0").touch()
    with pytest.raises(UsageError, match=said):
        count_devices("auto", dev=str(dev))
