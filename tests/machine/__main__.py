"""Run a command in a virtual machine with another kernel, on this machine's own files.

    python -m tests.machine --kernel VMLINUZ --modules DIR [--cgroups v2] -- COMMAND...

Nothing is installed and nothing is written: the machine sees the file system of the host read-only,
keeps changes in its memory, has no network, and is gone when the command ends. Its exit code is the
command's. It is for what a kernel decides, such as limits by control groups of version 2, where the
host has another. Takes qemu-system-x86_64, a static busybox, and a kernel of any distribution with
its modules (`dpkg-deb -x linux-image-*.deb DIR` gives both). Fast where /dev/kvm can be opened.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.machine import initramfs

__all__ = ["main"]

_HOST_OF_A_PROGRAM = "mount -t hostfs -o / host /lower"
_HOST_OF_QEMU = (
    "mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /lower"
)
# A machine that is a program keeps its memory in a file there.
_MEMORY = "/dev/shm"
# All that the processor has, but for a register that a host that is a guest itself refuses to set.
_PROCESSOR = "max,arch-capabilities=off"


def main() -> int:
    """Boot, run the command, and return its exit code; 125 when the machine did not get so far."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    is_program = options.kernel.read_bytes()[:4] == b"\x7fELF"
    modules = initramfs.modules_with_needs(options.modules, options.without)
    busybox = options.busybox and Path(options.busybox)
    if not busybox or not busybox.is_file():
        raise SystemExit("cannot make a machine: there is no busybox (a static one); try --busybox")
    script = initramfs.init_script(
        options.command,
        cgroups=options.cgroups,
        host=_HOST_OF_A_PROGRAM if is_program else _HOST_OF_QEMU,
        folder=str(Path.cwd()),
        environ={"PATH": os.environ["PATH"], "HOME": "/root", "LC_ALL": "C.UTF-8"},
        modules=list(modules),
    )
    files = {"init": script.encode(), "bin/busybox": busybox.read_bytes()}
    files |= {f"modules/{name}.ko": module for name, module in modules.items()}
    with tempfile.TemporaryDirectory(dir=_MEMORY if is_program else None) as folder:
        archive = Path(folder, "initramfs")
        archive.write_bytes(initramfs.pack(files))
        boot = _as_a_program if is_program else _by_qemu
        with subprocess.Popen(
            boot(options, archive),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},
        ) as machine:
            assert machine.stdout is not None, "it is a pipe"
            try:
                return _pass_on(machine.stdout.fileno())
            finally:
                machine.terminate()


def _pass_on(output: int) -> int:
    """Show what the machine says, as it says it; returns the exit code that it said last."""
    last = b""
    while said := os.read(output, 1 << 16):
        sys.stdout.buffer.write(said)
        sys.stdout.flush()
        last = (last + said)[-1000:]
    ended = re.search(rf"{initramfs.END} (\d+)".encode(), last)
    if ended is None:
        sys.stderr.write("the machine ended before the command did\n")
        return 125
    return int(ended[1])


def _as_a_program(options: argparse.Namespace, archive: Path) -> list[str]:
    settings = ["con=null", "con0=null,fd:1", *_settings(options)]
    return [str(options.kernel), f"mem={options.memory}", f"initrd={archive}", *settings]


def _by_qemu(options: argparse.Namespace, archive: Path) -> list[str]:
    settings = ["console=ttyS0", "panic=-1", *_settings(options)]
    return [
        *("qemu-system-x86_64", "-accel", options.accel, "-cpu", _PROCESSOR),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"),
        *("-smp", str(options.processors), "-m", options.memory, "-serial", "stdio"),
        *("-kernel", str(options.kernel), "-initrd", str(archive), "-append", " ".join(settings)),
        "-virtfs",
        "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
    ]


def _settings(options: argparse.Namespace) -> list[str]:
    version_2 = ["cgroup_no_v1=all"] if options.cgroups == "v2" else []
    return ["quiet", *version_2, *options.boot]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.machine",
        description=(__doc__ or "").partition("\n")[0],
    )
    add = parser.add_argument
    add("--kernel", type=Path, required=True, help="the kernel's image (vmlinuz)")
    add("--modules", type=Path, required=True, help="the folder of its modules")
    add("--busybox", default=shutil.which("busybox"), help="a static one; default: that on PATH")
    add("--cgroups", choices=sorted(initramfs.LAYOUTS), default="v2", help="default: v2")
    add("--without", action="append", default=[], metavar="MODULE", help="do not load it")
    add("--boot", action="append", default=[], metavar="SETTING", help="for the kernel's command")
    add("--accel", choices=["kvm", "tcg"], default="kvm", help="tcg: slow, goes everywhere")
    add("--processors", type=int, default=2, help="default: 2")
    add("--memory", default="4G", help="default: 4G")
    add("command", nargs="+", metavar="COMMAND", help="what is run, as root, in this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
