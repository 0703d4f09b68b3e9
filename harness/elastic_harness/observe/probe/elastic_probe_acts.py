# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""What a worker can be told to do to itself between two steps, beyond ending in order.

Loaded when the first such order comes. Each act says `acted` with `phase` "began" before the point
of no return, and "ended" where there is a life after it; "refused" with the reason where it cannot
be done. An act that lasts ends with the word
`resume`, when the harness is gone, or after an hour.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from elastic_harness.observe.probe.elastic_probe_wire import now
    from elastic_harness.observe.probe.elastic_probe_worker import Probe
else:
    from elastic_probe_wire import now

__all__ = ["perform"]

# Longer than any test waits for a rank; it is for a harness that has forgotten about one.
_LIMIT_S = 3600.0
# How long the harness may take to set a limit that a worker has prepared for.
_LIMITING_S = 5.0
_CHUNK_BYTES = 16 << 20


def perform(probe: Probe, name: str, argument: str) -> None:
    """Do one act; a name that is not known is said to be so."""
    act = _ACTS.get(name)
    if act is None:
        probe.acted(name, "unknown", "")
        return
    act(probe, argument)


# --- ends that are not in order ---------------------------------------------------------------


def _segfault(probe: Probe, _: str) -> None:
    import ctypes

    _leave_no_core()
    probe.acted("segfault", "began", "")
    ctypes.string_at(0)


def _abort(probe: Probe, _: str) -> None:
    import os

    _leave_no_core()
    probe.acted("abort", "began", "")
    os.abort()


def _leave_no_core() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _eat(probe: Probe, size: str) -> None:
    """Take memory and touch it, until the kernel has had enough or `size` bytes are taken.

    The kernel is told to choose this process before all others; then it stands until the limit is
    set, so that no other process ever meets that in its place.
    """
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    probe.acted("eat", "began", size)
    if not _stands_until_told(probe, _LIMITING_S):
        return
    eaten = [b"\x01" * _CHUNK_BYTES for _ in range(-(-int(size) // _CHUNK_BYTES))]
    probe.acted("eat", "ended", str(len(eaten) * _CHUNK_BYTES))


# --- standing still ---------------------------------------------------------------------------


def _stand(probe: Probe, _: str) -> None:
    """Stand still between two steps, as a process that is alive: threads and handlers run."""
    probe.acted("stand", "began", "")
    _stands_until_told(probe, _LIMIT_S)
    probe.acted("stand", "ended", "")


def _hold_gil(probe: Probe, _: str) -> None:
    """Stand still in a native call that keeps the interpreter's lock: no other thread runs.

    Signals with a handler in Python are kept waiting, as they would be: the handler needs the lock.
    """
    import ctypes
    import signal

    class PollFd(ctypes.Structure):
        _fields_ = (
            ("fd", ctypes.c_int),
            ("events", ctypes.c_short),
            ("revents", ctypes.c_short),
        )

    poll = ctypes.PyDLL(None).poll  # unlike CDLL, it does not give the lock away
    handled = [s for s in signal.valid_signals() if callable(signal.getsignal(s))]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        probe.acted("hold_gil", "began", "")
        deadline = now() + _LIMIT_S
        while not _is_told_to_resume(probe) and (left_s := deadline - now()) > 0:
            fd = probe.wire.fileno()
            if fd < 0:
                break
            poll(ctypes.byref(PollFd(fd, 1, 0)), 1, int(left_s * 1000) + 1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    probe.acted("hold_gil", "ended", "")


def _stands_until_told(probe: Probe, within_s: float) -> bool:
    """Stand still for so long at most; return whether the harness has ended that by order."""
    deadline = now() + within_s
    while not (is_over := _is_told_to_resume(probe)) and probe.wire.wait(deadline):
        pass
    return is_over and probe.wire.is_open


def _is_told_to_resume(probe: Probe) -> bool:
    """Tell whether the wait is over: by order, or because the harness is gone."""
    is_over = False
    for words in probe.wire.read():
        if words == ["resume"]:
            is_over = True
        else:
            probe.obey(words)
    return is_over or not probe.wire.is_open


# --- the GPU ----------------------------------------------------------------------------------
#
# torch is the worker's own, if it has any: nothing here imports it. Written from the sources of
# torch 2.13; it has not been run on a device yet.

_CALIBRATION_CYCLES = 1_000_000
_sleeps: list[tuple[Any, Any]] = []  # the events before and after the sleeps of this worker


def _cuda(probe: Probe, act: str) -> Any:  # noqa: ANN401 (a module that we do not import)
    """Return torch, or None once it was said why this worker cannot use a GPU."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        probe.acted(act, "refused", "it has not imported torch")
    elif not torch.cuda.is_available():
        probe.acted(act, "refused", "its torch has no CUDA device (torch.cuda.is_available())")
    else:
        return torch
    return None


def _device_assert(probe: Probe, _: str) -> None:
    """Start a kernel that looks beyond the end of a tensor; the next call of CUDA fails."""
    torch = _cuda(probe, "device_assert")
    if torch is None:
        return
    table = torch.zeros(1, device="cuda")
    beyond = torch.ones(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()  # what the job did before is not ours
    probe.acted("device_assert", "began", "")
    table[beyond]


def _gpu_sleep(probe: Probe, milliseconds: str) -> None:
    """Put a kernel that spins so long on the current stream, and go on.

    Calibrated as torch's own tests do it (`torch.testing._internal.common_utils`), with the middle
    of five: the first call of CUDA in a process is much slower than the rest.
    """
    torch = _cuda(probe, "gpu_sleep")
    if torch is None:
        return
    took = sorted(_spin(torch, _CALIBRATION_CYCLES, is_awaited=True) for _ in range(5))
    cycles_per_ms = _CALIBRATION_CYCLES / took[2]
    cycles = int(cycles_per_ms * int(milliseconds))
    _spin(torch, cycles, is_awaited=False)
    probe.acted("gpu_sleep", "began", f"{cycles} cycles")


def _spin(torch: Any, cycles: int, *, is_awaited: bool) -> float:  # noqa: ANN401 (see `_cuda`)
    """Spin on the device; returns how many milliseconds it took, 0.0 if it is not waited for."""
    before = torch.cuda.Event(enable_timing=True)
    after = torch.cuda.Event(enable_timing=True)
    before.record()
    torch.cuda._sleep(cycles)  # noqa: SLF001 (there is no public one)
    after.record()
    if not is_awaited:
        _sleeps.append((before, after))
        return 0.0
    after.synchronize()
    return float(before.elapsed_time(after))


def _gpu_slept(probe: Probe, _: str) -> None:
    """Wait for the newest sleep, and say how many milliseconds it took by the device's events."""
    if not _sleeps:
        probe.acted("gpu_slept", "refused", "it was not told to sleep on its GPU")
        return
    before, after = _sleeps.pop()
    after.synchronize()
    probe.acted("gpu_slept", "ended", f"{before.elapsed_time(after):.0f}")


def _nccl_abort(probe: Probe, _: str) -> None:
    """Abort the communicator of the default group, whose next collective fails then."""
    torch = _cuda(probe, "nccl_abort")
    if torch is None:
        return
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        probe.acted("nccl_abort", "refused", "it has no process group")
        return
    try:
        group = distributed.group.WORLD
        backend = group._get_backend(torch.device("cuda"))  # noqa: SLF001 (there is no public way)
    except RuntimeError:
        backend = None
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL there is a wrapper around it.
    backend = getattr(backend, "wrapped_pg", backend)
    nccl = getattr(distributed, "ProcessGroupNCCL", None)
    if nccl is None or not isinstance(backend, nccl):
        probe.acted("nccl_abort", "refused", "its default process group does not use NCCL")
        return
    if not hasattr(backend, "abort"):
        probe.acted("nccl_abort", "refused", f"torch {torch.__version__} cannot abort from Python")
        return
    probe.acted("nccl_abort", "began", "")
    backend.abort()
    probe.acted("nccl_abort", "ended", "")


# --- asking -----------------------------------------------------------------------------------


def _tell_time(probe: Probe, _: str) -> None:
    """Say what this process takes the time of day to be."""
    import time

    probe.acted("tell_time", "ended", repr(time.time()))


# --- descriptors ------------------------------------------------------------------------------

# What the interpreter says (PEP 578) right before it asks the kernel for a descriptor; and nothing
# that may do without one, as a look at a name (which may be an address) or a socket (of one that is
# there already).
_OPENING = frozenset({"open", "os.listdir", "os.scandir", "subprocess.Popen"})
_watches: dict[str, Probe] = {}  # by whose order it is
_hooks: list[object] = []


def _watch_files(probe: Probe, _: str) -> None:
    """Say `ended` when the script is refused a descriptor (EMFILE); stand until the limit is set.

    What native code opens by itself is not seen.
    """
    import sys

    if not _hooks:
        _hooks.append(_on_audit)
        sys.addaudithook(_on_audit)  # there is no way to take one away
    _watches[probe.order_by] = probe
    probe.acted("watch_files", "began", "")
    _stands_until_told(probe, _LIMITING_S)


def _on_audit(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _OPENING or not _watches:
        return
    try:
        if _has_free_number():
            return
        wanted = f"{event} {arguments[0]!r}"[:200] if arguments else event
        while _watches:
            by, probe = _watches.popitem()
            probe.acted("watch_files", "ended", wanted, by)
    except Exception:  # noqa: BLE001, S110 (an audit hook that raises would break what it watches)
        pass


def _has_free_number() -> bool:
    """Tell whether there is a descriptor below the limit that is not in use."""
    import os

    for number in range(os.sysconf("SC_OPEN_MAX")):
        try:
            os.fstat(number)
        except OSError:
            return True
    return False


_ACTS: dict[str, Callable[[Probe, str], None]] = {
    "abort": _abort,
    "device_assert": _device_assert,
    "eat": _eat,
    "gpu_sleep": _gpu_sleep,
    "gpu_slept": _gpu_slept,
    "hold_gil": _hold_gil,
    "nccl_abort": _nccl_abort,
    "segfault": _segfault,
    "stand": _stand,
    "tell_time": _tell_time,
    "watch_files": _watch_files,
}
