"""How a warm interpreter is started: the command and the environment that hold it in site.

A program that wants one (a cold launcher for its keeper, the harness for its cluster server)
passes both to `fork_and_execute` or `subprocess.Popen`, with the descriptors that are named in
`argument`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_elastic.boot.order import VARIABLE, WarmOrder, encode_order

__all__ = ["SITE_FOLDER", "command_and_environ", "fork_and_execute"]

SITE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

# One thread in each of these pools: a child forked from a host that has ever had a pool of threads
# hangs in its first parallel operation. The program gets its own number when it starts.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Never reached: a host ends inside its role, or becomes a program. Until then `ps` shows it.
_NEVER_RUN = "raise SystemExit('a warm interpreter was not held in site initialisation')"

# Without hold. The current folder, which `-c` puts first, is not to shadow anything.
_PLAY = """\
import sys
if sys.path[:1] == ['']: del sys.path[0]
sys.path.append({root!r})
from pytest_elastic.boot.host import serve_unheld
serve_unheld()
"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command_and_environ(
    role: str,
    argument: Mapping[str, Any],
    *,
    preload: Sequence[str] = ("torch",),
    hold: bool = True,
    base_environ: Mapping[str, str] | None = None,
    python: str | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of a warm interpreter that will play `role`.

    `role` is "module:attribute", called with `argument` (JSON values only). `base_environ` is what
    the role will see as its environment (default: this process's), with nothing of ours in it.
    The new process must not be started with `-I`, `-E` or `-S`.
    """
    environ = dict(os.environ if base_environ is None else base_environ)
    environ.pop(VARIABLE, None)
    ours = {"PYTHONPATH": SITE_FOLDER, **dict.fromkeys(_ONE_THREAD, "1")} if hold else {}
    order = WarmOrder(
        role=role,
        argument=argument,
        preload=tuple(preload) if hold else (),
        replaced={name: environ.get(name) for name in ours},
    )
    code = _NEVER_RUN if hold else _PLAY.format(root=_ROOT)
    flags = ["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else []
    command = [python or sys.executable, *([] if hold else flags), "-c", code]
    return command, {**environ, **ours, VARIABLE: encode_order(order)}


def fork_and_execute(
    command: Sequence[str], environ: Mapping[str, str], *, inherit: Sequence[int]
) -> int:
    """Start a process that keeps the descriptors named; for callers with one thread only.

    `os.posix_spawn` would leave the C library's own signals ignored in it, and in all its
    descendants; `subprocess` takes 10 ms to import. Ends with 127 if the command cannot be run.
    """
    pid = os.fork()
    if pid == 0:
        try:
            for fd in inherit:
                os.set_inheritable(fd, True)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(command[0], list(command), dict(environ))
        except BaseException as error:  # noqa: BLE001 (the caller's frames are not ours to unwind)
            os.write(2, f"cannot start {command[0]}: {error}\n".encode(errors="replace"))
        os._exit(127)
    return pid
