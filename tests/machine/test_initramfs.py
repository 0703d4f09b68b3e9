"""What a machine is started with; the machine itself is for who has a kernel for it."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

import pytest

from tests.machine import initramfs


def test_modules_come_after_those_that_they_need(tmp_path: Path) -> None:
    """Their names may be written either way, and a kernel may have some of them built in."""
    (tmp_path / "9pnet.ko").write_bytes(b"\0depends=\0")
    (tmp_path / "9pnet_virtio.ko.xz").write_bytes(lzma.compress(b"\0depends=9pnet,virtio-ring\0"))
    (tmp_path / "virtio_ring.ko").write_bytes(b"\0depends=\0")
    (tmp_path / "tun.ko").write_bytes(b"\0depends=\0")
    found = initramfs.modules_with_needs(tmp_path, without=["tun"])
    assert list(found) == ["9pnet", "virtio_ring", "9pnet_virtio"]
    assert found["9pnet_virtio"].startswith(b"\0depends=")


@pytest.mark.parametrize("cgroups", sorted(initramfs.LAYOUTS))
def test_what_is_done_first_is_a_script(cgroups: str) -> None:
    """Whatever the command and the surroundings are."""
    script = initramfs.init_script(
        ["sh", "-c", "echo 'it is'; exit 3"],
        cgroups=cgroups,
        host="true",
        folder="/a folder",
        environ={"HOME": "it's"},
        modules=["tun"],
    )
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=60)
