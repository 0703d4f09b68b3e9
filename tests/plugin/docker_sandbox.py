"""A command in what `docker run` gives a container by default, made without a Docker engine.

    python docker_sandbox.py UID COMMAND [ARGUMENT...]

The capabilities of Docker's default set (none for an ordinary user), its masked and read-only
paths of /proc, a read-only /sys with the control groups, a /dev of six devices with 64 MB of
shared memory, pids of its own, and a seccomp filter that refuses what Docker's refuses: namespaces,
mounts, keys, modules, bpf. Files, packages and the network are the machine's. Only root can make
it, on x86-64.

The lists are those of Docker's default profile (https://docs.docker.com/engine/security/seccomp/)
and of the paths that its engine masks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CAPABILITIES = (
    *("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid"),
    *("setfcap", "setpcap", "net_bind_service", "sys_chroot", "kill", "audit_write"),
)
MASKED = (
    *("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi"),
    *("timer_list", "timer_stats"),
)
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# Numbers of x86-64, which Docker's default profile lets nobody call without a further capability.
_CLONE, _CLONE3, _NAMESPACES = 56, 435, 0x7E020000
REFUSED = {
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "fanotify_init": 300,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "acct": 163,
    "settimeofday": 164,
    "clock_settime": 227,
    "sethostname": 170,
    "setdomainname": 171,
    "syslog": 103,
    "quotactl": 179,
    "iopl": 172,
    "ioperm": 173,
    "vhangup": 153,
    "open_by_handle_at": 304,
    "lookup_dcookie": 212,
    "kcmp": 312,
    "pidfd_getfd": 438,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "move_pages": 279,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
}
_NEW = 0x00020000 | 0x08000000 | 0x20000000 | 0x02000000  # mounts, ipc, pids, control groups
_RDONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _MOVE = 1, 32, 4096, 16384, 1 << 18, 8192
_SET_SECCOMP, _FILTER, _SET_PDEATHSIG = 22, 2, 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (text.encode() or None for text in (source, target, kind))
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount on {target}")


def _read_only(path: str) -> None:
    _mount("", path, flags=_REMOUNT | _BIND | _RDONLY)


def _make_file_systems() -> None:
    """Lay out /proc, /sys and /dev as in a container; in mount and pid namespaces of its own."""
    _mount("", "/", flags=_RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc")
    for name in MASKED:
        if os.path.isdir(path := f"/proc/{name}"):
            _mount("tmpfs", path, "tmpfs", _RDONLY)
        elif os.path.exists(path):
            _mount("/dev/null", path, flags=_BIND)
    for name in READ_ONLY:
        if os.path.exists(path := f"/proc/{name}"):
            _mount(path, path, flags=_BIND)
            _read_only(path)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in {each for each in mounts if each == "/sys" or each.startswith("/sys/")}:
        _read_only(path)
    if os.path.isdir("/sys/firmware"):
        _mount("tmpfs", "/sys/firmware", "tmpfs", _RDONLY)
    _make_devices()


def _make_devices() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _mount("tmpfs", folder, "tmpfs", data="mode=755")
        for name in DEVICES:
            if os.path.exists(f"/dev/{name}"):
                Path(folder, name).touch()
                _mount(f"/dev/{name}", f"{folder}/{name}", flags=_BIND)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
        os.symlink("/proc/self/fd", f"{folder}/fd")
        os.mkdir(f"{folder}/shm")
        _mount("shm", f"{folder}/shm", "tmpfs", data="mode=1777,size=64m")
        _mount(folder, "/dev", flags=_MOVE)


def _refuse_calls() -> None:
    """Load the filter; it stays with every process from here on."""
    load, equals, masked, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    program: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 0),  # the call's number
        (equals, 0, 1, _CLONE3),  # its flags cannot be read: libraries fall back to clone
        (answer, 0, 0, 0x00050000 | errno.ENOSYS),
        (equals, 0, 3, _CLONE),
        (load, 0, 0, 16),  # its first argument
        (masked, 0, 1, _NAMESPACES),
        (answer, 0, 0, refuse),
        (load, 0, 0, 0),
    ]
    for number in REFUSED.values():
        program += [(equals, 0, 1, number), (answer, 0, 0, refuse)]
    program.append((answer, 0, 0, allow))
    code = b"".join(struct.pack("=HBBI", *each) for each in program)
    lines = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(lines)))
    _check(_libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0), "load a seccomp filter")


def _open_up(user: int) -> None:
    """Let an ordinary user read this interpreter and its packages, wherever they are."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.plugin.as_user import needed, open_up

    open_up(needed(), user)


def main(argv: list[str]) -> int:
    """Run the command and return its exit code; all that it has left ends with it."""
    user, *command = argv
    _open_up(int(user))
    _check(_libc.unshare(_NEW), "make namespaces")
    first = os.fork()
    if first == 0:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
        _make_file_systems()
        _refuse_calls()
        # The first process of the container is this one: it has no handlers, and collects orphans.
        child = subprocess.Popen(
            [
                *("setpriv", "--reuid", user, "--regid", user, "--clear-groups"),
                *("--bounding-set", ",".join(("-all", *(f"+{name}" for name in CAPABILITIES)))),
                *("--inh-caps", "-all", "--", *command),
            ]
        )
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.wait()
                if pid == child.pid:
                    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        os._exit(1)
    _, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
