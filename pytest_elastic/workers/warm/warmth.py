"""Whether a worker may be started warm: only when it cannot be told from a fresh interpreter.

A warm worker is forked from an interpreter that has torch imported. Whatever would have been read
at a fresh start, or while importing, must be as the host found it; nothing beside the script may
have the name of a module that is loaded already. What is not sure is started by exec, with the
reason in the event log. What the program itself does, `boot.hidden` watches.
"""

from __future__ import annotations

import os
import platform
import re
import zipfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes

from pytest_elastic.boot.host import Host
from pytest_elastic.events.model import NOT_OUR_PYTHON
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.warm.library_reads import READ_BY_LIBRARIES, TRACED

__all__ = ["look_around", "read_by_libraries", "why_cold"]

# Families that libraries read while they are imported, by getenv: on another processor or system
# they may read others of a family than where `library_reads` was traced.
_READ_BY_IMPORTS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMPY_", "NPY"),
    *("TORCH", "PYTORCH", "ATEN_", "C10_", "NETWORKX_", "TQDM_"),
)
# Read by the interpreter, the C library or an imported library while it starts.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", *_READ_BY_IMPORTS)
# Of those families: read later, by what they concern, or given to each worker anew.
_READ_LATER = (
    *("TORCHELASTIC_", "TORCH_ELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_WORKER_"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST"),
    # Lightning sets it above its import of torch.
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)
# Of those: `boot.interpreter` does in the child what a fresh start would have done.
_MENDED = frozenset(
    {
        *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER"),
        *("PYTHON_EXEC", "PYTHONBREAKPOINT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("TMPDIR", "TEMP", "TMP"),
        # readline, which triton imports, puts the terminal's size there itself when it is loaded.
        *("COLUMNS", "LINES"),
        # Another one for each test of a session; with torch 2.14 something asks for it.
        "PYTEST_CURRENT_TEST",
    }
)
# Of those: a fresh interpreter shows or does something while it starts or imports. A warm one has
# done so already, once: the worker must be a fresh one though the host was started with the same.
_SEEN_AT_START = (
    *("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONTRACEMALLOC", "PYTHONDEVMODE"),
    *("PYTHONINSPECT", "PYTHONMALLOCSTATS", "PYTHONDUMPREFS", "PYTHONPERFSUPPORT"),
)
# What a worker is given by the launcher, its plugins and the harness: no library reads them when it
# is loaded, and what asks Python for one is recorded.
_GIVEN = (
    *("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "TORCH_FILE_"),
    *("PYTEST_", "ELASTIC_", "CUDA_VISIBLE_DEVICES", "PWD", "OLDPWD", "SHLVL", "_"),
)
# Coverage begins before the program; its `.pth` file begins it in the warm interpreter, too.
_COVERAGE = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
# Programs that run another one to see what it does: its imports are part of that.
_OBSERVERS = frozenset(
    {
        *("cProfile", "profile", "trace", "coverage", "memray", "scalene", "viztracer"),
        *("pyinstrument", "memory_profiler", "kernprof"),
    }
)
# Which modules load the libraries of `library_reads`, and, where not all, what begins their names.
_HAVE_LIBRARIES: Mapping[str, str | tuple[str, ...]] = {
    "torch": "",
    "numpy": "",
    "triton": ("TRITON_", "LLVM_", "PTXAS_", "bar"),
}
# The longest first: `x.cpython-311-x86_64-linux-gnu.so` is the module x.
_SUFFIXES = tuple(sorted(all_suffixes(), key=len, reverse=True))
_MENDED_FLAGS = frozenset({"-u", "-B", "-q"})


# The folders that a script could import from, in the order of `sys.path` (its own, then the entries
# of PYTHONPATH), each with the names of the modules in it.
Folders = Mapping[str, frozenset[str]]


def why_cold(spec: WorkerSpec, host: Host, folders: Folders) -> str:
    """Say in one sentence why the worker may not be forked from `host`; "" if it may."""
    if not spec.is_python:
        return f"{spec.command[0]} {NOT_OUR_PYTHON}"
    return (
        _odd_command(spec.command[1:])
        or _seen_at_start(spec.environ)
        or _different_start(spec.environ, host)
        or _counted_processors(spec)
        or _shadowed_module(folders, host.modules)
        or _missing_folder(spec, host)
    )


def look_around(spec: WorkerSpec, seen: dict[str, frozenset[str]]) -> Folders:
    """Read the folders that would come first on the worker's `sys.path`.

    `seen` remembers folders between the workers of one round.
    """
    entries = [_first_entry(spec), *_python_path(spec)]
    for entry in entries:
        if entry not in seen:
            seen[entry] = _modules_in(entry)
    return {entry: seen[entry] for entry in entries}


def read_by_libraries(host: Host) -> Mapping[str, Container[str]]:
    """Return the variables that modules of `host` have, or may have, read but by Python."""
    is_traced = _unlisted(host) == host.unlisted
    reads: dict[str, Container[str]] = {
        module: _Read(begins, is_any=not is_traced)
        for module, begins in _HAVE_LIBRARIES.items()
        if module in host.modules
    }
    if host.unlisted:
        reads[host.unlisted_in] = _Read("", is_any=True)
    return reads


@dataclass(frozen=True, slots=True)
class _Read:
    """The variables that libraries read; with `is_any`, all but those that workers are given."""

    begins: str | tuple[str, ...]
    is_any: bool

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or not name.startswith(self.begins):
            return False
        is_unlisted = self.is_any and not name.startswith((*_GIVEN, *_READ_LATER))
        return is_unlisted or _is_listed(name)


def _odd_command(arguments: Sequence[str]) -> str:
    """Say what of the interpreter's options is not the same in a forked one."""
    _, target = _split(arguments)
    if not target or target[0] == "-":
        return "the program comes from standard input"
    if target[0] in {"-m", "-c"}:
        if len(target) == 1:
            return f"{target[0]} names nothing"
        if target[0] == "-m" and target[1].partition(".")[0] in _OBSERVERS:
            return f"{target[1]} observes a program, and what it imports is a part of that"
        return ""
    if target[0].startswith("-"):
        return f"the interpreter option {target[0]} needs a fresh interpreter"
    return ""


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Part the interpreter's options that make no difference from what follows them."""
    count = 0
    while count < len(arguments) and arguments[count] in _MENDED_FLAGS:
        count += 1
    return arguments[:count], arguments[count:]


def _seen_at_start(environ: Mapping[str, str]) -> str:
    for name in _SEEN_AT_START:
        if environ.get(name):
            return f"{name} shows in how an interpreter starts"
    for name in _COVERAGE:
        if environ.get(name):
            return f"{name}: coverage is measured from an interpreter's start"
    warnings = environ.get("PYTHONWARNINGS", "")
    if not all(rule.startswith("ignore") for rule in filter(None, warnings.split(","))):
        return f"PYTHONWARNINGS={warnings} may show warnings of what is imported already"
    return ""


def _different_start(wanted: Mapping[str, str], host: Host) -> str:
    found, unlisted = host.environ, _unlisted(host)
    for name in sorted({*wanted, *found}):
        if wanted.get(name) == found.get(name) or name in _MENDED:
            continue
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER):
            how = "is read at start and differs"
        elif _is_read_by_imports(name, host):
            how = "is read by what is preloaded and differs"
        elif unlisted and not name.startswith(_GIVEN):
            how = f"differs, and {unlisted}"
        else:
            continue
        return (
            f"{name} {how}: {wanted.get(name)!r} for the worker,"
            f" {found.get(name)!r} for the warm interpreter"
        )
    threads = wanted.get("OMP_NUM_THREADS", "1")
    if not threads.isdecimal():
        return f"OMP_NUM_THREADS={threads} is not one number"
    return ""


def _counted_processors(spec: WorkerSpec) -> str:
    """Say whether a fresh interpreter would have counted other processors than the host did."""
    if spec.cpus is not None and "OMP_NUM_THREADS" not in spec.environ:
        return "OpenMP counts the processors it may use at start, and this worker has its own"
    return ""


def _shadowed_module(folders: Folders, modules: Mapping[str, str]) -> str:
    for folder, names in folders.items():
        for name in sorted(names.intersection(modules)):
            if not _lies_in(modules[name], folder):
                return f"{name} in {folder} would hide a module that is already loaded"
    return ""


def _is_read_by_imports(name: str, host: Host) -> bool:
    """Tell whether what is preloaded in `host` has read a variable, as far as that is known."""
    return name in host.read or _is_listed(name)


def _is_listed(name: str) -> bool:
    return name in READ_BY_LIBRARIES or (
        name.startswith(_READ_BY_IMPORTS) and not name.startswith(_READ_LATER)
    )


def _unlisted(host: Host) -> str:
    """Say why the preloaded libraries may read variables that are not listed, or nothing."""
    if host.unlisted or not host.torch:
        return host.unlisted
    processor, releases = TRACED
    numbers = re.match(r"(\d+)\.(\d+)\.", host.torch)
    if numbers is None or tuple(map(int, numbers.groups())) not in releases:
        return f"what torch {host.torch} reads has not been traced"
    if platform.machine() != processor:
        return f"what torch reads on {platform.machine()} has not been traced"
    return ""


def _missing_folder(spec: WorkerSpec, host: Host) -> str:
    """Say which module the host found in a folder that is not on the worker's path.

    A folder of the host's PYTHONPATH is missing even if a fresh interpreter has it further down its
    path, where others may come before it.
    """
    theirs = set(_python_path(spec))
    for folder in host.added_path:
        if folder not in theirs:
            for name, file in host.modules.items():
                if _lies_in(file, folder):
                    return f"{name} is loaded from {folder}, which is not on the worker's path"
    return ""


def _lies_in(file: str, folder: str) -> bool:
    return os.path.dirname(file) in {folder, os.path.join(folder, _package(file))}


def _package(file: str) -> str:
    """Return the name of the folder that holds a package's `__init__`, else nothing."""
    if os.path.basename(file).startswith("__init__."):
        return os.path.basename(os.path.dirname(file))
    return ""


def _first_entry(spec: WorkerSpec) -> str:
    """Return what Python will put first on `sys.path`."""
    _, target = _split(spec.command[1:])
    if not target or target[0] in {"-m", "-c", "-"}:
        return os.path.abspath(spec.cwd)
    script = os.path.realpath(os.path.join(spec.cwd, target[0]))
    # A folder or an archive with a __main__ is itself the entry.
    is_entry = os.path.isdir(script) or _is_archive(script)
    return script if is_entry else os.path.dirname(script)


def _python_path(spec: WorkerSpec) -> list[str]:
    text = spec.environ.get("PYTHONPATH", "")
    return (
        [os.path.abspath(os.path.join(spec.cwd, e)) for e in text.split(os.pathsep)] if text else []
    )


def _modules_in(folder: str) -> frozenset[str]:
    """Return the top-level modules that an import would find in `folder`, or in an archive."""
    try:
        if _is_archive(folder):
            with zipfile.ZipFile(folder) as archive:
                files = archive.namelist()
        else:
            files = _module_files(folder)
    except (OSError, zipfile.BadZipFile):
        return frozenset()
    names = set()
    for file in files:
        module = next((file.removesuffix(each) for each in _SUFFIXES if file.endswith(each)), "")
        package, _, inner = module.rpartition("/")
        # A folder without an __init__ hides nothing that is found further down the path.
        names.add(package if inner == "__init__" else module)
    return frozenset(name for name in names if name and "/" not in name)


def _is_archive(path: str) -> bool:
    # A pipe would not be there twice.
    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _module_files(folder: str) -> list[str]:
    """Return the files in `folder`, and the paths there that `__init__` may have below it."""
    files = os.listdir(folder)
    inits = [
        f"{each}/__init__{suffix}" for each in files if "." not in each for suffix in _SUFFIXES
    ]
    return files + [path for path in inits if os.path.exists(os.path.join(folder, path))]
