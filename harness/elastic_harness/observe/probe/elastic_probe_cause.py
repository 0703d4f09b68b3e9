# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""Why a worker fails, or where it stands still, as far as that can be seen from inside.

An uncaught exception is reported before it is printed; what prints it is what would have
printed it without us. The stacks of all threads are written by C code (`faulthandler`), because
a hanging thread may never give Python's lock back: on a signal that has no other use, into a file
that is memory only. The harness sends that signal at the end of a run that hangs, and reads the
file.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found,unused-ignore]
import _thread
import os
import sys

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from elastic_harness.observe.probe.elastic_probe_wire import high_descriptor, now, quoted
    from elastic_harness.observe.probe.elastic_probe_worker import Probe
else:
    from elastic_probe_wire import high_descriptor, now, quoted

__all__ = ["CauseSide"]

# Real-time signals have no use by default: libc keeps the lowest for itself, and programs take
# theirs from both ends. faulthandler asks the kernel to restart system calls that it interrupts.
_SIGNAL = _signal.SIGRTMIN + 13
# A program may start thread after thread that fails.
_MAX_REPORTS = 20
_MAX_FRAMES = 20
_MAX_MESSAGE = 2000


class CauseSide:
    """What is reported of exceptions, and how stacks are offered."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._main = _thread.get_ident()
        self._main_error = 0  # what was reported of the main thread, by id
        self._left = _MAX_REPORTS

    def install(self) -> None:
        """Stand in front of what prints exceptions, and offer the stacks."""
        self._watch_main_thread()
        self._watch_threads()
        self._offer_stacks()

    def finish(self) -> None:
        """Report what the script's own hook has kept from ours."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._report_main(error, error.__traceback__)

    # --- exceptions ----------------------------------------------------------------------------

    def _watch_main_thread(self) -> None:
        previous = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            if _thread.get_ident() == self._main:
                self._report_main(error, trace)
            else:
                self._report(error, trace, "a thread")  # by a hook of the script's
            previous(kind, error, trace)

        # Programs compare the two to see whether a hook is installed.
        if previous is sys.__excepthook__:
            sys.__excepthook__ = excepthook  # type: ignore[misc,unused-ignore]
        sys.excepthook = excepthook

    def _watch_threads(self) -> None:
        """Do the same for other threads, without importing `threading` for it."""
        threading: Any = sys.modules.get("threading")
        module: Any = _thread
        if threading is None:
            previous = getattr(module, "_excepthook", None)
        else:
            previous = threading.excepthook
        if previous is None:
            return  # a Python without it: what threads raise is printed, and not reported

        def excepthook(args: Any) -> None:  # noqa: ANN401 (`threading` may not be imported)
            if args.exc_type is not SystemExit:
                self._report(args.exc_value, args.exc_traceback, _name_of(args.thread))
            previous(args)

        if threading is None:
            module._excepthook = excepthook  # noqa: SLF001
            return
        if previous is threading.__excepthook__:
            threading.__excepthook__ = excepthook
        threading.excepthook = excepthook

    def _report_main(self, error: BaseException, trace: TracebackType | None) -> None:
        """Report what ends the main thread, once: `sys.last_value` keeps it, and its id."""
        if id(error) != self._main_error:
            self._main_error = id(error)
            self._report(error, trace, "")

    def _report(
        self, error: BaseException | None, trace: TracebackType | None, thread: str
    ) -> None:
        if error is None or self._left == 0 or not self._probe.wire.is_open:
            return
        self._left -= 1
        try:
            kind = type(error)
            name = kind.__qualname__
            if kind.__module__ not in ("builtins", "__main__"):
                name = f"{kind.__module__}.{name}"
            message = str(error)[:_MAX_MESSAGE]
            frames = ",".join(map(quoted, _places(trace)))
            self._probe.say(
                "worker_raised",
                f'"error":{quoted(name)},"message":{quoted(message)},"frames":[{frames}],'
                f'"thread":{quoted(thread)}',
                now(),
            )
        except Exception:  # noqa: BLE001, S110 (an error that cannot even be named is still printed)
            pass

    # --- stacks --------------------------------------------------------------------------------

    def _offer_stacks(self) -> None:
        """Have the stacks written on a signal, and say where."""
        if _signal.getsignal(_SIGNAL) != _signal.SIG_DFL or not hasattr(os, "memfd_create"):
            return
        import faulthandler

        fd = high_descriptor(os.memfd_create("elastic-stacks"))
        faulthandler.register(_SIGNAL, fd, all_threads=True, chain=False)
        self._probe.say("stacks", f'"fd":{fd},"signal":{int(_SIGNAL)},"main":{self._main}', now())


def _places(trace: TracebackType | None) -> list[str]:
    """Return where an exception came by, innermost first."""
    places: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return places[: -_MAX_FRAMES - 1 : -1]


def _name_of(thread: Any) -> str:  # noqa: ANN401 (`threading` may not be imported)
    return str(getattr(thread, "name", "") or "a thread")
