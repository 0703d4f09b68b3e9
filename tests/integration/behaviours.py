"""What a script can find out about the interpreter it runs in: one small program for each.

Each is run as a person would type it, and as a warm worker; what they print must be the same. They
print nothing that differs between two runs of the same command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["BEHAVIOURS", "Behaviour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """A command behind the interpreter, the files it needs, and what it has in its environment."""

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def script(text: str, *arguments: str, **environ: str) -> Behaviour:
    """Return the behaviour of a file named `script.py`."""
    return Behaviour(command=["script.py", *arguments], files={"script.py": text}, environ=environ)


_IDENTITY = """\
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.executable)
print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
print(__name__, globals().get("__file__"), __package__, type(__loader__).__name__)
print(__spec__ and __spec__.name)
print(sorted(globals()), sys.modules["__main__"].__dict__ is globals())
frame = sys._getframe()
print(frame.f_code.co_name, frame.f_back and frame.f_back.f_lineno, sys.getrecursionlimit())
print([name for name in sorted(sys.modules) if "elastic" in name or "customize" in name])
"""

_STREAMS = """\
import sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines,
          stream.line_buffering, stream.write_through, stream.closed, stream.fileno(),
          type(stream.buffer).__name__, stream.isatty(), stream.buffer.name)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(repr(sys.stdout), repr(sys.stdin), repr(sys.stderr))
"""

_SIGNALS = """\
import signal
for number in sorted(signal.valid_signals()):
    print(number, signal.getsignal(number))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
with open("/proc/self/status") as status:
    print([line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))])
"""

_ENVIRONMENT = """\
import ctypes, os, subprocess, sys
print(sorted(os.environ.items()))
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"RANK"), libc.getenv(b"PYTHONPATH"), libc.getenv(b"PYTEST_ELASTIC_ROLE"))
print(sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()))
print(sorted(open("/proc/self/environ").read().split("\\0")))
print(open("/proc/self/cmdline").read().split("\\0"), open("/proc/self/comm").read())
print(os.getcwd(), os.umask(0o22), sorted(os.listdir("/proc/self/fd")))
import resource
print([resource.getrlimit(n) for n in range(resource.RLIM_NLIMITS)], os.sched_getaffinity(0))
"""

_THREADS = """\
import os, threading
main = threading.main_thread()
print(main.native_id == os.getpid(), main is threading.current_thread(), main.name, main.daemon)
print(threading.active_count(), len(os.listdir("/proc/self/task")))
def late():
    import time
    time.sleep(0.1)
    print("a thread is waited for", flush=True)
threading.Thread(target=late).start()
"""

_EXIT = """\
import atexit, sys
atexit.register(print, "atexit 1")
atexit.register(print, "atexit 2")
class Late:
    def __del__(self):
        print("collected at the end")
late = Late()
sys.stdout.write("no newline at the end")
"""

_PROCESSES = """\
import multiprocessing, sys
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
def double(point, queue):
    queue.put(Point(point.x * 2))
def square(point): return Point(point.x ** 2)
if __name__ == "__main__":
    method = sys.argv[1]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=double, args=(Point(21), queue))
    process.start()
    print(queue.get(timeout=60) == Point(42), Point.__module__)
    process.join()
    print(process.exitcode, process.name, multiprocessing.current_process().name)
    with context.Pool(2) as pool:
        print([point.x for point in pool.map(square, [Point(2), Point(3)])])
    print(multiprocessing.parent_process(), multiprocessing.get_start_method(allow_none=True))
"""

_TRACEBACK = """\
def inner(n):
    return 1 / n
def outer():
    try:
        inner(0)
    except ZeroDivisionError as error:
        raise RuntimeError("the cause is above") from error
outer()
"""

# Each thread that numpy starts has to have the mask of now, or it takes the signal, and dies of it.
_WAITS_FOR_A_SIGNAL = """\
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
import numpy, torch
numpy.ones((500, 500)) @ numpy.ones((500, 500))  # its threads have begun when this is done
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait({signal.SIGTERM}))
"""
_GIVES_UP_PROCESSORS = """\
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy, torch
print(torch.get_num_threads(), len(os.listdir("/proc/self/task")))
"""
_TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(64, 8), torch.rand(64, 1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in DataLoader(data, batch_size=16, num_workers=2):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")
    big = torch.rand(400, 400, requires_grad=True)
    (big @ big).sum().backward()
    print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype())
    import numpy
    print(f"{(numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum():.1f}")
if __name__ == "__main__":
    main()
"""

_OWN_SITE = {
    "script.py": "import sys; print('script', sys.modules['sitecustomize'].__file__)",
    "site_folder/sitecustomize.py": "import sys; print('own sitecustomize', sys.argv, __name__)",
    "site_folder/beside.py": "WHERE = __file__",
}

_PACKAGE = {
    "package/__init__.py": "print('package', __name__, __path__)",
    "package/part.py": "from . import other; print(__name__, __package__, __spec__.name, other.X)",
    "package/other.py": "X = 'relative'",
    "package/__main__.py": "import sys; from .other import X; print(__name__, sys.argv, X)",
}

BEHAVIOURS: Mapping[str, Behaviour] = {
    "identity of a script": script(_IDENTITY, "--steps=3", "ünï"),
    "identity of -c": Behaviour(command=["-c", _IDENTITY, "a"]),
    "identity, unbuffered": Behaviour(command=["-u", "script.py"], files={"script.py": _IDENTITY}),
    "identity in a folder": Behaviour(
        command=["deep/script.py"], files={"deep/script.py": _IDENTITY}
    ),
    "identity of a folder": Behaviour(
        command=["app", "x"], files={"app/__main__.py": _IDENTITY, "app/lib.py": ""}
    ),
    "identity of -m": Behaviour(command=["-m", "module", "b"], files={"module.py": _IDENTITY}),
    "relative imports under -m": Behaviour(command=["-m", "package.part"], files=_PACKAGE),
    "a package under -m": Behaviour(command=["-m", "package", "c"], files=_PACKAGE),
    "an archive as the program": Behaviour(command=["-m", "zipfile", "-t", "x.zip"]),
    "streams": script(_STREAMS),
    "streams, unbuffered": Behaviour(command=["-u", "script.py"], files={"script.py": _STREAMS}),
    "streams, unbuffered by variable": script(_STREAMS, PYTHONUNBUFFERED="1"),
    "bytecode is not written": script(_IDENTITY, PYTHONDONTWRITEBYTECODE="1"),
    # With more threads than one, OpenBLAS has its own from the start, though nobody calls it yet.
    "signals": script(_SIGNALS, OMP_NUM_THREADS="1"),
    "environment": script(_ENVIRONMENT, RANK="3", SPECIAL="ünï \n x"),
    "threads": script(_THREADS, OMP_NUM_THREADS="1"),
    "the end of a program": script(_EXIT),
    "status 7": script("import sys; print('x'); sys.exit(7)"),
    "status 300": script("import sys; sys.exit(300)"),
    "exit with a text": script("raise SystemExit('a text')"),
    "exit at once": script("import os; print('lost'); os._exit(9)"),
    "exit from a thread": script(
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\n"
        "threading.excepthook = lambda a: print(a.exc_type, a.thread.name)\nt.start()\nt.join()"
    ),
    "an exception": script(_TRACEBACK),
    "an exception under -m": Behaviour(command=["-m", "module"], files={"module.py": _TRACEBACK}),
    "an exception under -c": Behaviour(command=["-c", _TRACEBACK]),
    "a syntax error": script("print(1)\nthis is not python\n"),
    "a program that is not there": Behaviour(command=["missing.py"]),
    "a module that is not there": Behaviour(command=["-m", "missing_module"]),
    "an excepthook": script(
        "import sys\nsys.excepthook = lambda *e: print(e[0].__name__, e[2].tb_frame.f_back)\n1/0"
    ),
    "an interrupt": script("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()"),
    "killed by SIGTERM": script("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    "aborted": script("import os; os.abort()", PYTHONFAULTHANDLER="1"),
    "a segmentation fault, explained": script(
        "import ctypes; ctypes.string_at(0)", PYTHONFAULTHANDLER="1"
    ),
    "a segmentation fault": script("import ctypes; ctypes.string_at(0)"),
    "spawned processes": script(_PROCESSES, "spawn"),
    "forked processes": script(_PROCESSES, "fork"),
    "processes of a server": script(_PROCESSES, "forkserver"),
    "a breakpoint and nobody there": script("x = 1\nbreakpoint()\nprint('not reached')"),
    "a breakpoint of one's own": Behaviour(
        command=["script.py"],
        files={
            "script.py": "x = 1\nbreakpoint('here')\nprint('on')",
            "site_folder/own.py": "def stop(*args): print(args, __name__)",
        },
        environ={"PYTHONBREAKPOINT": "own.stop", "PYTHONPATH": "site_folder"},
    ),
    "no breakpoints": script("breakpoint()\nprint('on')", PYTHONBREAKPOINT="0"),
    "under pdb": Behaviour(
        command=["-m", "pdb", "-c", "break 2", "-c", "continue", "-c", "p x", "script.py", "arg"],
        files={"script.py": "x = 40\nx += 2\nprint(x)"},
    ),
    "a traceback of faulthandler": script(
        "import faulthandler, signal, os\nfaulthandler.register(signal.SIGUSR1)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)"
    ),
    "standard input": script("print(repr(input.__self__), repr(__import__('sys').stdin.read()))"),
    "logging": script("import logging; logging.warning('to stderr'); print(logging.root.handlers)"),
    "a warning": script("import warnings; warnings.warn('shown once', UserWarning)"),
    "random numbers from a seed": script("import random; random.seed(1); print(random.random())"),
    "the collector": script("import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug())"),
    "locale": script(
        "import locale, sys\n"
        "print(locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL))\n"
        "print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())"
    ),
    "a relative PYTHONPATH": Behaviour(
        command=["script.py"],
        files={
            "script.py": "import sys, beside; print(sys.path, beside.WHERE)",
            "site_folder/beside.py": "WHERE = __file__",
        },
        environ={"PYTHONPATH": "site_folder::site_folder:."},
    ),
    "an own sitecustomize": Behaviour(
        command=["script.py"], files=_OWN_SITE, environ={"PYTHONPATH": "site_folder"}
    ),
    "an own sitecustomize that fails": Behaviour(
        command=["-c", "import sys; print('sitecustomize' in sys.modules)"],
        files={"site_folder/sitecustomize.py": "print('before'); 1/0"},
        environ={"PYTHONPATH": "site_folder"},
    ),
    "time zone": script("import time; print(time.tzname, time.timezone)", TZ="Asia/Tokyo"),
    "the main module is importable": script(
        "import pickle, __main__\nclass A: pass\n"
        "print(__main__.A is A, pickle.loads(pickle.dumps(A)) is A)"
    ),
    "an import in the script's folder": Behaviour(
        command=["script.py"],
        files={"script.py": "import neighbour", "neighbour.py": "print(__name__, __file__)"},
    ),
    "a signal that is waited for": script(_WAITS_FOR_A_SIGNAL, OMP_NUM_THREADS="2"),
    "processors given up before an import": script(_GIVES_UP_PROCESSORS),
    "training": script(_TRAIN, OMP_NUM_THREADS="1"),
    "training with two threads": script(_TRAIN, OMP_NUM_THREADS="2"),
    "training with as many threads as there are": script(_TRAIN),
    "more threads than cores": script(
        "import torch\ntorch.ones(2).sum()\nprint(torch.get_num_threads())", OMP_NUM_THREADS="500"
    ),
}
