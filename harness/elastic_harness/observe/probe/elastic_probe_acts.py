# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""What a worker can be told to do to itself between two steps, beyond ending in order.

Loaded when the first such order comes. Each act says `acted` with `phase` "began" before the point
of no return, and "ended" where there is a life after it. An act that lasts ends with the word
`resume`, when the harness is gone, or after an hour.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_harness.observe.probe.elastic_probe import Probe
    from elastic_harness.observe.probe.elastic_probe_wire import now, quoted
else:
    from elastic_probe_wire import now, quoted

__all__ = ["perform"]

# Nobody waits this long for a rank; it is for a harness that has forgotten about one.
_LIMIT_S = 3600.0
_CHUNK_BYTES = 16 << 20
# Orders that precede the end of the process must have left before it.
_FLUSH_LIMIT_S = 1.0


def perform(probe: Probe, name: str, argument: str) -> None:
    """Do one act; a name that is not known is said to be so."""
    act = _ACTS.get(name)
    if act is None:
        _say(probe, name, "unknown", "")
        return
    act(probe, argument)


def _say(probe: Probe, name: str, phase: str, detail: str) -> None:
    fields = f'"act":{quoted(name)},"phase":{quoted(phase)},"detail":{quoted(detail)}'
    probe.say("acted", fields, now())
    probe.wire.flush(_FLUSH_LIMIT_S)


# --- ends that are not in order ---------------------------------------------------------------


def _segfault(probe: Probe, _: str) -> None:
    import ctypes

    _leave_no_core()
    _say(probe, "segfault", "began", "")
    ctypes.string_at(0)


def _abort(probe: Probe, _: str) -> None:
    import os

    _leave_no_core()
    _say(probe, "abort", "began", "")
    os.abort()


def _leave_no_core() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _eat(probe: Probe, size: str) -> None:
    """Take memory and touch it, until the kernel has had enough or `size` bytes are taken.

    The kernel is told to choose this process before all others.
    """
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    _say(probe, "eat", "began", size)
    eaten = [b"\x01" * _CHUNK_BYTES for _ in range(-(-int(size) // _CHUNK_BYTES))]
    _say(probe, "eat", "ended", str(len(eaten) * _CHUNK_BYTES))


# --- standing still ---------------------------------------------------------------------------


def _stand(probe: Probe, _: str) -> None:
    """Stand still between two steps, as a process that is alive: threads and handlers run."""
    _say(probe, "stand", "began", "")
    deadline = now() + _LIMIT_S
    while not _is_told_to_resume(probe) and probe.wire.wait(deadline):
        pass
    _say(probe, "stand", "ended", "")


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
        _say(probe, "hold_gil", "began", "")
        deadline = now() + _LIMIT_S
        while not _is_told_to_resume(probe) and (left_s := deadline - now()) > 0:
            fd = probe.wire.fileno()
            if fd < 0:
                break
            poll(ctypes.byref(PollFd(fd, 1, 0)), 1, int(left_s * 1000) + 1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _say(probe, "hold_gil", "ended", "")


def _is_told_to_resume(probe: Probe) -> bool:
    """Tell whether the wait is over: by order, or because nobody is there to give one."""
    is_over = False
    for words in probe.wire.read():
        if words == ["resume"]:
            is_over = True
        else:
            probe.obey(words)
    return is_over or not probe.wire.is_open


# --- asking -----------------------------------------------------------------------------------


def _tell_time(probe: Probe, _: str) -> None:
    """Say what this process takes the time of day to be."""
    import time

    _say(probe, "tell_time", "ended", repr(time.time()))


_ACTS: dict[str, Callable[[Probe, str], None]] = {
    "abort": _abort,
    "eat": _eat,
    "hold_gil": _hold_gil,
    "segfault": _segfault,
    "stand": _stand,
    "tell_time": _tell_time,
}
