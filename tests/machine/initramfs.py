"""The first file system of a virtual machine: a static busybox, modules, and what is done first.

The kernel unpacks it into memory and runs `/init`. That mounts the host's file system, which it is
given read-only, below one in memory that takes all changes, goes there and runs the command.
"""

from __future__ import annotations

import gzip
import lzma
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["END", "LAYOUTS", "init_script", "modules_with_needs", "pack"]

# How control groups are laid out, by what mounts them in their folder. `hybrid` is what systemd did
# before version 2 had everything: version 1 for all controllers, beside it a version 2 without any.
_V1 = "mount -t tmpfs cgroups $PWD; cd $PWD\n" + "\n".join(
    f"mkdir {name}; mount -t cgroup -o {name} cgroup {name}"
    for name in ("cpu", "memory", "pids", "freezer")
)
LAYOUTS: Mapping[str, str] = {
    # As systemd leaves it: what its services are limited by is enabled at the root.
    "v2": "mount -t cgroup2 -o nsdelegate cgroup2 $PWD\n"
    "for name in cpu memory pids; do echo +$name > $PWD/cgroup.subtree_control; done",
    "v1": _V1,
    "hybrid": f"{_V1}\nmkdir unified; mount -t cgroup2 cgroup2 unified",
}
# What distributions keep outside of their kernels. What is not there is built in.
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "ipv6", "tun", "fuse", "sch_netem")

_INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /lower /changes /root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module.ko || echo "machine: no module $module"; done
{host}
mount -t tmpfs -o size=90% changes /changes; mkdir /changes/new /changes/work
mount -t overlay -o lowerdir=/lower,upperdir=/changes/new,workdir=/changes/work overlay /root
mount -t proc proc /root/proc; mount -t sysfs sys /root/sys; mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm; ln -s /proc/self/fd /root/dev/fd
mount -t devpts -o ptmxmode=0666 pts /root/dev/pts; ln -sf pts/ptmx /root/dev/ptmx
mount -t tmpfs -o mode=1777 shm /root/dev/shm; mount -t tmpfs -o mode=1777 tmp /root/tmp
cd /root/sys/fs/cgroup
{cgroups}
cd /
# As udev has it on most distributions: an ordinary user may open these.
for device in net/tun fuse; do [ ! -e /root/dev/$device ] || chmod 0666 /root/dev/$device; done
ip link set lo up; hostname machine; ulimit -n 1048576
cp /bin/busybox /root/dev/busybox
cat > /root/dev/command <<'END OF COMMAND'
{command}
END OF COMMAND
exec switch_root /root /bin/sh /dev/command
"""
# What the machine says last, before the command's exit code.
END = "the command in the machine has ended with"
_COMMAND = """\
{environ}
cd {folder}
setsid {command} </dev/null
echo "{end} $?"
/dev/busybox poweroff -f
"""


def init_script(
    command: Sequence[str],
    *,
    cgroups: str,
    host: str,
    folder: str,
    environ: Mapping[str, str],
    modules: Sequence[str],
) -> str:
    """Return `/init`: it mounts `host`, runs a command in a folder, and says its exit code."""
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items())
    return _INIT.format(
        modules=" ".join(modules),
        cgroups=LAYOUTS[cgroups],
        host=host,
        command=_COMMAND.format(
            end=END, environ=exports, folder=shlex.quote(folder), command=shlex.join(command)
        ),
    )


def modules_with_needs(folder: Path, without: Sequence[str]) -> dict[str, bytes]:
    """Return the modules to load, each after those it needs, from a kernel's folder of modules."""
    there = {
        path.name.partition(".ko")[0].replace("-", "_"): path
        for path in sorted(folder.rglob("*.ko*"))
    }
    found: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name in found or name not in there:
            return
        module = _read(there[name])
        needs = re.search(rb"\0depends=([^\0]*)", module)
        for need in needs[1].decode().split(",") if needs else ():
            take(need.replace("-", "_"))
        found[name] = module

    for name in _MODULES:
        if name not in without:
            take(name)
    return found


def _read(path: Path) -> bytes:
    """Return a module as the kernel takes it."""
    match path.suffix:
        case ".xz":
            return lzma.decompress(path.read_bytes())
        case ".gz":
            return gzip.decompress(path.read_bytes())
        case ".ko":
            return path.read_bytes()
        case _:
            raise SystemExit(f"cannot read {path}: unpack it first (zstd -d)")


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of executable files as the kernel unpacks it (cpio, "newc")."""
    folders = dict.fromkeys(name.partition("/")[0] for name in files if "/" in name)
    entries = [(name, b"", 0o040755) for name in folders]
    entries += [(name, content, 0o100755) for name, content in files.items()]
    entries.append(("TRAILER!!!", b"", 0))
    archive = bytearray()
    for number, (name, content, mode) in enumerate(entries, start=1):
        # inode, mode, user, group, links, time, size, device and special device, name, no checksum
        facts = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % fact for fact in facts) + name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + content
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
