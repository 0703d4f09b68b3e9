"""From a forked child to the program it is to be: executed, called, or played as a role."""

from __future__ import annotations

import importlib
import os
import signal
import tempfile
from collections.abc import Mapping
from typing import Any, cast

from pytest_elastic.boot import host
from pytest_elastic.boot.role import Program, Role

__all__ = ["ProgramRole"]

# What every Python ignores from its start on.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)

# Calls the entry point as a console script would, in a `__main__` of its own.
_CALL = (
    "import sys, importlib\n"
    "_module, _, _name = sys.argv.pop(1).partition(':')\n"
    "sys.argv[0] = sys.argv.pop(1)\n"
    "sys.exit(getattr(importlib.import_module(_module), _name)(sys.argv[1:]))\n"
)


class ProgramRole:
    """A child of a node's init on its way to the program named by a `ProcessSpec`.

    `tell` is a pipe: closed by executing the program (or by becoming it), else written the reason.
    """

    def __init__(self, fields: Mapping[str, Any], tell: int) -> None:
        self._fields = fields
        self._tell = tell

    def run(self) -> Role | Program:
        """Take the program's place in the world, then be it."""
        argv = list(self._fields["argv"])
        environ = dict(self._fields["environ"])
        try:
            self._enter()
            if self._fields.get("preloaded_role"):
                return self._as_role(self._fields["preloaded_role"], argv, environ)
            if self._fields.get("preloaded_entry") and host.current() is not None:
                os.close(self._tell)
                call = ["-c", _CALL, self._fields["preloaded_entry"], *argv]
                return Program(argv=call, environ=environ)
            os.execvpe(argv[0], argv, environ)
        except (OSError, ImportError, AttributeError) as error:
            reason = f"cannot start {argv[0]!r}: {error}"
            os.write(self._tell, reason.encode()[:4000])
        os._exit(127)

    def _enter(self) -> None:
        fields = self._fields
        # Where the server keeps temporary files is not where a node does.
        tempfile.tempdir = None
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            # Python ignores SIGPIPE and SIGXFSZ, and hands that on to what it executes.
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for stream, flags in (("stdin", os.O_RDONLY), ("stdout", append), ("stderr", append)):
            fd = os.open(fields[stream] or os.devnull, flags | os.O_CLOEXEC, 0o666)
            os.dup2(fd, ("stdin", "stdout", "stderr").index(stream))
            os.close(fd)
        os.chdir(fields["cwd"])

    def _as_role(self, name: str, argv: list[str], environ: dict[str, str]) -> Role:
        for number in _PYTHON_IGNORES:
            # A role is not started by a user: a connection that breaks is no reason to die.
            signal.signal(number, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environ)
        module_name, _, attribute = name.partition(":")
        make: Any = getattr(importlib.import_module(module_name), attribute)
        role = cast("Role", make(argv[1:]))
        os.close(self._tell)
        return role
