"""What importing torch reads from the environment is known, and a worker that differs is fresh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.workers.messages import VariableChanged
from pytest_elastic.workers.warm.library_reads import READ_BY_LIBRARIES
from tests.integration.small_agent import AgentProcess
from tests.integration.test_warm_workers import LIMIT_S, run_worker
from tests.library_reads import trace
from tests.unit.boot.held import ROLE, hold

_TELL = """import json
        from pytest_elastic.boot.host import current
        print(json.dumps([sorted(current().read), current().unlisted]), flush=True)
        sys.exit()  # torch 2.7 has a folder to remove
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_what_libraries_read_is_listed(tmp_path: Path) -> None:
    """Traced anew: a torch that reads more by getenv fails here until the list has it."""
    found = trace(tmp_path)
    assert {"OMP_NUM_THREADS", "TORCH_SHOW_CPP_STACKTRACES"} <= found, "nothing was traced"
    assert sorted(found - READ_BY_LIBRARIES) == []


def test_what_the_default_preload_asks_python_for_is_recorded(tmp_path: Path) -> None:
    """Some hundreds of names, from torch's configuration and from sympy's."""
    done = hold(ROLE.format(body=_TELL), tmp_path, preload=DEFAULT_PRELOAD)
    names, unlisted = json.loads(done.stdout)
    assert {"TORCH_LOGS", "TORCHINDUCTOR_MAX_AUTOTUNE", "INDUCTOR_POST_FUSION_SVG"} <= {*names}
    assert {"AOT_INDUCTOR_DEBUG_COMPILE", "FX_PATCH_GETITEM", "SYMPY_DEBUG"} <= {*names}
    assert unlisted == ""


Small = tuple[AgentProcess, Mapping[str, str]]


@pytest.fixture(scope="module")
def torch_agent() -> Iterator[AgentProcess]:
    """An agent whose keeper has the default preloaded, for all tests of this file."""
    with AgentProcess(preload=DEFAULT_PRELOAD) as agent:
        yield agent


@pytest.fixture(scope="module")
def small_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """An agent whose keeper has small modules preloaded, and its environment."""
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / "early.py").write_text(
        "import os, part\nMODE = os.environ.get('EARLY_MODE')\n"
        "import atexit; atexit.register(lambda: None)\n"
    )
    (folder / "part.py").write_text("import os\nMODE = os.environ.get('PART_MODE')\n")
    (folder / "settings.py").write_text("import os\nos.environ['EARLY_MODE'] = 'new'\n")
    environ = {**os.environ, "PYTHONPATH": str(folder), "EARLY_MODE": "old", "PART_MODE": "old"}
    with AgentProcess(preload=["early"], environ=environ) as agent:
        yield agent, environ


def check(
    agent: AgentProcess,
    environ: Mapping[str, str],
    text: str,
    variable: str | None,
    obstacle: str,
    work: Path,
) -> str:
    """Run a program by Python and warm, and compare; return what it printed by Python.

    It changes `variable` too late, if not None, and can begin again, if there is no `obstacle`.
    """
    work.mkdir()
    folder = work / "work"
    folder.mkdir()
    script = f"{work.name}.py"  # the keeper remembers it
    (folder / script).write_text(text)
    fresh = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        start_new_session=True,
    )
    (warm,) = run_worker(agent, [script], folder, environ)
    changes = [each for each in agent.reports if isinstance(each, VariableChanged)]
    agent.reports.clear()
    assert [change.variable for change in changes] == ([] if variable is None else [variable])
    if obstacle:
        assert changes[0].obstacle.startswith(obstacle)
        assert warm[1].startswith(f"pytest-elastic: {variable} was changed after the warm")
        assert "use --worker-start=exec" in warm[1]
        assert warm[2] == 0
    else:
        # What was written above the change is there twice; nothing is, here.
        assert warm == (fresh.stdout, "", 0)
    return fresh.stdout


# A program; the variable that it changes too late when it is warm; why it cannot begin again then.
_SET = "os.environ['EARLY_MODE'] = 'new'\n"
_SAY = "import early; print(early.MODE, early.part.MODE)\n"
_CHANGES = """\
import os, signal
found = [
    os.umask(0o77), os.getcwd(), os.sched_getaffinity(0), sorted(os.environ.items()),
    signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(0, [signal.SIGUSR1]),
    signal.getitimer(signal.ITIMER_REAL), os.listdir("/proc/self/fd"), os.getpid() == os.getsid(0),
    open("/proc/self/cmdline").read(),
]
os.chdir("/")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1000)
os.set_inheritable(os.open("/", os.O_RDONLY), True)
"""
_CASES: Mapping[str, tuple[str, str | None, str]] = {
    "by its name": (f"import os\n{_SET}{_SAY}", "EARLY_MODE", ""),
    "by a computed name": (
        f"import os\nos.environ['EARLY_' + 'MODE'] = '3'\n{_SAY}",
        "EARLY_MODE",
        "",
    ),
    "by an installed package": (f"import settings\n{_SAY}", "EARLY_MODE", ""),
    "by C code": (
        f"import ctypes\nctypes.CDLL(None).setenv(b'EARLY_MODE', b'3', 1)\n{_SAY}",
        *("EARLY_MODE", ""),
    ),
    "below os": (f"import posix\nposix.putenv(b'PART_MODE', b'3')\n{_SAY}", "PART_MODE", ""),
    "as bytes": (f"import os\nos.environb[b'PART_MODE'] = b'3'\n{_SAY}", "PART_MODE", ""),
    "by deleting it": (f"import os\ndel os.environ['EARLY_MODE']\n{_SAY}", "EARLY_MODE", ""),
    "after a part was imported": (f"import os, part\n{_SET}{_SAY}", "EARLY_MODE", ""),
    "that the part has read": (
        f"import os, part\nos.environ['PART_MODE'] = 'new'\n{_SAY}",
        *(None, ""),
    ),
    "in a program that has changed itself": (
        f"{_CHANGES}{_SET}{_SAY}print(found)",
        "EARLY_MODE",
        "",
    ),
    "at a lower priority": (
        f"import os\nnice = os.nice(3)\n{_SET}{_SAY}print(nice)\n",
        *("EARLY_MODE", "" if os.geteuid() == 0 else "the worker may not raise its priority"),
    ),
    "while there is a child": (
        (
            "import os, signal\nchild = os.fork()\nif child == 0: signal.pause()\n"
            f"{_SET}os.kill(child, 9); os.wait()\n{_SAY}"
        ),
        *("EARLY_MODE", "the worker has children"),
    ),
    "after children have ended": (
        (
            "import os, subprocess\nsubprocess.run(['true'])\n"
            f"if os.fork() == 0: os._exit(0)\nos.wait()\n{_SET}{_SAY}"
        ),
        *("EARLY_MODE", ""),
    ),
    "in a child": (
        (
            f"import os\nif os.fork() == 0:\n    {_SET}    import early; os._exit(0)\n"
            "os.wait()\nprint('ended')\n"
        ),
        *("EARLY_MODE", "this is a child of the worker"),
    ),
    "in a child that executes another program": (
        (
            "import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import early'],"
            f" preexec_fn=lambda: os.environ.update(EARLY_MODE='3'))\n{_SAY}"
        ),
        *(None, ""),
    ),
    "in another thread": (
        (
            "import os, threading\n"
            "t = threading.Thread(target=os.environ.update, kwargs={'EARLY_MODE': '3'})\n"
            f"t.start(); t.join()\n{_SAY}"
        ),
        *("EARLY_MODE", "that was not its main thread"),
    ),
    "in a line that is not reached": (f"import os\nif not os.environ: {_SET}{_SAY}", None, ""),
    "to what it is": (
        f"import os\nos.environ['EARLY_MODE'] = os.environ['EARLY_MODE']\n{_SAY}",
        *(None, ""),
    ),
    "for a while": (
        f"import os\nkept = dict(os.environ)\nos.environ.clear()\nos.environ.update(kept)\n{_SAY}",
        *(None, ""),
    ),
    "when all is imported": (f"{_SAY}import os\n{_SET}print(os.putenv)\n", None, ""),
    "that nothing has read": (
        f"import os\nos.environ['OTHER'] = 'x'\n{_SAY}print(os.environ['OTHER'])\n",
        *(None, ""),
    ),
    "while a module waits to be used": (
        (
            "import importlib.util as util, os, sys\nspec = util.find_spec('early')\n"
            "spec.loader = util.LazyLoader(spec.loader)\nearly = util.module_from_spec(spec)\n"
            f"sys.modules['early'] = early\nspec.loader.exec_module(early)\n{_SET}{_SAY}"
        ),
        *("EARLY_MODE", ""),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_a_variable_that_a_program_changes_means_what_it_means_to_python(
    name: str, small_agent: Small, tmp_path: Path
) -> None:
    """Started warm, it prints what `python` prints, or says that it cannot; then it is exec'ed."""
    agent, environ = small_agent
    program, variable, obstacle = _CASES[name]
    work = tmp_path / name.replace(" ", "_")
    expected = check(agent, environ, program, variable, obstacle, work)
    for each in work.glob("std*"):
        each.unlink()
    start, script = "warm" if variable is None else "exec", f"{work.name}.py"
    (again,) = run_worker(agent, [script], work / "work", environ, expect_start=start)
    assert again == (expected, "", 0)
    agent.reports.clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
def test_a_program_in_a_root_without_proc_goes_on_with_the_old_value(
    small_agent: Small, tmp_path: Path
) -> None:
    """What an exec would hand on cannot be looked at there; the program's own line goes on."""
    agent, environ = small_agent
    (tmp_path / "work").mkdir()
    code = f"import os\nos.chroot('.')\n{_SET}print('on')\n"
    (run,) = run_worker(agent, ["-c", code], tmp_path / "work", environ)
    assert (run[0], run[2]) == ("on\n", 0)
    assert "and /proc/self/task cannot be read (No such file or directory): this worker" in run[1]


_SHOW = "import torch; print(torch.get_num_threads())\n"
_THREADS = "os.environ['OMP_NUM_THREADS'] = '3'\n"
_VERBOSE = "os.environ['TORCHDYNAMO_VERBOSE'] = '1'\n"
_SHOW_DYNAMO = "import torch._dynamo.config as c; print(c.verbose)\n"
_TORCH_CASES: Mapping[str, tuple[str, str | None, str]] = {
    "above numpy": (f"import os\n{_THREADS}import numpy\n{_SHOW}", "OMP_NUM_THREADS", ""),
    "below numpy": (f"import os, numpy\n{_THREADS}{_SHOW}", "OMP_NUM_THREADS", ""),
    "above a module of torch": (
        (
            "import ctypes\nctypes.CDLL(None).setenv(b'OMP_NUM_THREADS', b'3', 1)\n"
            f"from torch.nn import Linear\n{_SHOW}"
        ),
        *("OMP_NUM_THREADS", ""),
    ),
    "below torch": (f"import os, torch\n{_VERBOSE}{_SHOW_DYNAMO}", "TORCHDYNAMO_VERBOSE", ""),
    "below torch, and there is a socket": (
        f"import os, socket, torch\nfree = socket.socket()\n{_VERBOSE}{_SHOW_DYNAMO}",
        *("TORCHDYNAMO_VERBOSE", "the worker has opened socket:"),
    ),
    "below all": (
        f"import os, torch._dynamo\n{_THREADS}{_VERBOSE}{_SHOW}{_SHOW_DYNAMO}",
        *(None, ""),
    ),
}


@pytest.mark.parametrize("name", _TORCH_CASES)
def test_torchs_variables_count_until_it_is_imported(
    name: str, torch_agent: AgentProcess, tmp_path: Path
) -> None:
    """And torch._dynamo's until that is."""
    environ = {**os.environ, "OMP_NUM_THREADS": "2"}
    check(torch_agent, environ, *_TORCH_CASES[name], tmp_path / name.replace(" ", "_"))


_LOOKS = """\
import importlib, importlib.util, pickle, sys
print([name for name in ("torch", "numpy", "torch.nn", "torch._dynamo") if name in sys.modules])
found = importlib.util.find_spec("torch")
print(found.origin, found.submodule_search_locations, found.name, found.has_location)
print(importlib.util.find_spec("torch._not_there_at_all"))
print([name for name in ("torch", "numpy", "torch.nn", "torch._dynamo") if name in sys.modules])
linear = importlib.import_module("torch.nn.modules.linear")
import torch, numpy
print(torch.nn.modules.linear is linear, torch.__spec__.loader is torch.__loader__)
print(type(torch.__loader__), linear.__spec__.name, torch.__spec__.origin == torch.__file__)
print("torch._dynamo" in sys.modules, "_dynamo" in vars(torch), "sympy" in sys.modules)
print(pickle.loads(pickle.dumps(torch.nn.Linear)) is torch.nn.Linear)
import inspect
print(inspect.getsource(torch.nn.Linear)[:20], inspect.getmodule(torch.nn.Linear) is linear)
print(torch._dynamo.__name__, "torch._dynamo" in sys.modules, "sympy" in sys.modules)
import torch._inductor.config, sympy
print([finder for finder in sys.meta_path if "elastic" in type(finder).__module__])
print(importlib.reload(linear) is linear)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)))
"""
_WAITS = """\
import importlib.util, sys
class Loader:
    def __init__(self, own): self.own = own
    def create_module(self, spec): return self.own.create_module(spec)
    def exec_module(self, module):
        self.own.exec_module(module)
        print("imported", module.__name__, module.__spec__.name)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in ("torch.optim.optimizer", "torch"): return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        spec.loader = Loader(spec.loader)
        return spec
sys.meta_path.insert(0, Finder())
import torch
print(torch.optim.Optimizer, torch.optim.SGD)
"""
_LOGS = """\
import logging, logging.config
def show():
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            print(name, logger.parent.name, logger.level, logger.propagate, logger.handlers)
            print(logger.disabled, logger.isEnabledFor(logging.INFO))
show()
mine = logging.getLogger("torch.distributed")
logging.config.dictConfig({"version": 1, "root": {"level": "INFO"}})
import torch
show()
same = torch.distributed.distributed_c10d.logger
print(same is logging.getLogger(same.name), mine is logging.getLogger(mine.name))
logging.config.dictConfig({"version": 1, "root": {"level": "WARNING"}})
import torch._dynamo
show()
"""
_WARNS = """\
import warnings
def show(): print(*[each[:3] for each in warnings.filters], sep="\\n")
show()
warnings.simplefilter("ignore", ResourceWarning)
import numpy
show()
warnings.simplefilter("error", numpy.exceptions.RankWarning)
import torch
show()
with warnings.catch_warnings():
    import torch._dynamo
show()
"""
_BLOCKS = """\
import sys, warnings
warnings.simplefilter("ignore")  # torch warns that there is no numpy
sys.modules["numpy"] = None
import torch
try: import numpy
except ImportError as error: print(error)
"""


@pytest.mark.parametrize(
    "text",
    [_LOOKS, _WAITS, _LOGS, _WARNS, _BLOCKS],
    ids=["looks", "waits", "logs", "warns", "blocks"],
)
def test_a_program_cannot_tell_that_torch_was_hidden(
    text: str, torch_agent: AgentProcess, tmp_path: Path
) -> None:
    """Whether it looks for modules, loggers or filters, or waits for or blocks an import."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(text)
    (warm,) = run_worker(torch_agent, ["script.py"], folder, os.environ)
    fresh = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert warm == (fresh.stdout, fresh.stderr, 0)


_FINDS_FILES = """\
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path) if ".test_" in name else None
sys.meta_path.insert(0, Finder())
import torch
print(len(torch.optim.SGD([torch.ones(1)]).param_groups), "torch._inductor" in sys.modules)
"""


def test_no_hidden_module_is_executed_anew(torch_agent: AgentProcess, tmp_path: Path) -> None:
    """As pytest would have it, which finds the files of `test_*.py` by itself: torch has one."""
    folder = tmp_path / "work"
    folder.mkdir()
    (run,) = run_worker(torch_agent, ["-c", _FINDS_FILES], folder, os.environ)
    assert run == ("1 True\n", "", 0)


_TOGETHER = """\
import importlib, sys, threading
names = ["torch.nn.functional", "numpy", "torch", "sympy", "torch._dynamo", "numpy.linalg"]
threads = [threading.Thread(target=importlib.import_module, args=[name]) for name in names * 3]
for thread in threads: thread.start()
for thread in threads: thread.join()
import numpy, sympy, torch
print(torch.ones(2).numpy(), sympy.Symbol("x"), torch._dynamo.config.verbose)
"""


def test_threads_may_import_what_is_hidden_at_once(
    torch_agent: AgentProcess, tmp_path: Path
) -> None:
    """No module is executed a second time, which most would not survive."""
    folder = tmp_path / "work"
    folder.mkdir()
    (run,) = run_worker(torch_agent, ["-c", _TOGETHER], folder, os.environ)
    assert run == ("[1. 1.] x False\n", "", 0)


def test_a_variable_that_a_preloaded_module_reads_is_respected(tmp_path: Path) -> None:
    """As torch._dynamo imports triton, which looks at TRITON_INTERPRET then, and never again."""
    (tmp_path / "compiles.py").write_text("import os\nMODE = os.environ.get('COMPILES_MODE')\n")
    say = "import compiles\nprint(compiles.MODE)\n"
    setting = f"import os\nos.environ['COMPILES_MODE'] = 'slow'\n{say}"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with AgentProcess(preload=["compiles"], environ=environ) as agent:
        for text, added, start, said in (
            (setting, {}, "warm", "slow\n"),
            (say, {"COMPILES_MODE": "fast"}, "exec", "fast\n"),
            (say, {"UNREAD": "1"}, "warm", "None\n"),
        ):
            folder = tmp_path / said.strip() / "work"
            folder.mkdir(parents=True)
            script = f"{said.strip()}.py"
            (folder / script).write_text(text)
            (run,) = run_worker(agent, [script], folder, {**environ, **added}, expect_start=start)
            assert run == (said, "", 0)
