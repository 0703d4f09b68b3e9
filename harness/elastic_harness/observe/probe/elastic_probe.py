# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""What the harness sees from inside a worker.

This file runs in the user's process, under whatever Python it has, before the first line of the
script. So it uses the standard library only (and of that nothing that costs), does nothing of which
it cannot be sure, and falls silent at the first sign that the harness does not listen. Sending
never waits: what the kernel does not take waits in a bounded buffer, and then counts as dropped.
The only waits are the hello (until the harness has looked for workers that should be dead), a hold
(until a fault has fired), and the question which step parameters are of, where an optimizer counts
none (`elastic_probe_parameters`); all are bounded.

To the harness go JSON lines, each with `say`: the kind of an event of the history and its fields
(`elastic_harness.history.events`), `acted`, `stacks` or `step_begins`. Back come lines of words:
`welcome hash=1 samples=0 hold_s=30`, `hold STEP`, `unhold STEP`, `release`, `steps_done NUMBER`,
`enter` (the working folder again, by its path), `bystander`, and what the worker is to do at its
next step: `exit CODE =BY`, `raise ERROR =MESSAGE =BY`, `act NAME ARGUMENT =BY` (see
`elastic_probe_acts`; `resume` ends one that lasts). BY is whose order it is and goes back with what
is said of it; it and the message are written as in an URL. An order to end is acknowledged with
`began`, then `ended` when the interpreter goes down of it, `refused` when the script went on.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_harness.observe.probe.elastic_probe_cause import CauseSide
    from elastic_harness.observe.probe.elastic_probe_torch import TorchSide
    from elastic_harness.observe.probe.elastic_probe_wire import Wire
    from elastic_harness.observe.probe.elastic_probe_worker import Probe
else:
    from elastic_probe_cause import CauseSide
    from elastic_probe_torch import TorchSide
    from elastic_probe_wire import Wire
    from elastic_probe_worker import Probe

__all__ = ["report_resume", "report_samples", "report_step", "start"]

# The process that said hello names itself here, so that its children know what they are not.
_MARK = "ELASTIC_PROBE_WORKER"
# A regular expression whose group is the number of steps that are done, on the worker's output.
_STEP_PATTERN = "ELASTIC_PROBE_STEP"
_WORKER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = ("pytest-elastic", "torchrun")
_LAUNCHER_MODULES = ("pytest_elastic", "torch.distributed.launch", "torch.distributed.run")
_HELPER_CODE = (
    "from multiprocessing.forkserver import",
    "from multiprocessing.resource_tracker import",
)

_probe: Probe | None = None


def start(folder: str) -> None:
    """Say hello if this process is a worker; called once, by sitecustomize."""
    global _probe  # noqa: PLW0603 (one process, one probe)
    if _probe is not None or not _may_be_worker():
        return
    wire = Wire()
    if not wire.connect(os.environ["ELASTIC_PROBE_SOCKET"]):
        return
    probe = Probe(os.environ, wire)
    if not probe.say_hello():
        return
    _probe = probe
    os.environ[_MARK] = str(os.getpid())
    _hide(folder)
    atexit.register(probe.finish)
    cause = CauseSide(probe)
    cause.install()
    # Before the goodbye: the last that was registered comes first.
    atexit.register(cause.finish)
    os.register_at_fork(after_in_child=wire.forget)
    pattern = os.environ.pop(_STEP_PATTERN, None)
    if pattern is not None:
        probe.follow_output(pattern)
    TorchSide(probe).install()


def report_step(step: int) -> None:
    """Note that `step` steps are done, by the script's own count; wait if the harness holds it."""
    if _probe is not None:
        _probe.script_stepped(step)


def report_resume(step: int) -> None:
    """Note that `step` steps were done before this process began, by the script's own count."""
    if _probe is not None:
        _probe.script_resumed(step)


def report_samples(
    indices: Sequence[int], *, epoch: int | None, loader: str, size: int | None
) -> None:
    """Note samples that the next step will use, for scripts that do not use a DataLoader."""
    if _probe is not None:
        _probe.drew(loader, size, (epoch, "script"), indices)


def _may_be_worker() -> bool:
    environ = os.environ
    if any(name not in environ for name in _WORKER_VARIABLES):
        return False
    mark = environ.get(_MARK)
    if mark is not None and mark != str(os.getpid()):
        return False
    return not _is_helper(list(getattr(sys, "orig_argv", ())))


def _is_helper(argv: list[str]) -> bool:
    """Tell launchers and the standard library's helpers, which may inherit a worker's variables."""
    words = iter(argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in _LAUNCHER_MODULES
        if word == "-c":
            return next(words, "").startswith(_HELPER_CODE)
        if word in ("-X", "-W"):
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False


def _hide(folder: str) -> None:
    """Leave the worker's children the environment they would have had without us."""
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = [entry for entry in python_path if not entry or os.path.abspath(entry) != folder]
    if left:
        os.environ["PYTHONPATH"] = os.pathsep.join(left)
    else:
        os.environ.pop("PYTHONPATH", None)
