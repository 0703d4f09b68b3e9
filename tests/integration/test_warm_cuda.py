"""A program is not forked from an interpreter in which CUDA's driver was called.

What shows that is what the driver leaves: descriptors of its devices, or threads. The driver here
is a stub that writes down which of its functions are called, and leaves one or the other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.workers.messages import KeeperReady
from tests.integration.small_agent import AgentProcess

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

LIMIT_S = 60.0
# cuGetProcAddress is how the runtime finds the other functions.
STUB = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *name) {
    int file = open(getenv("STUB_CALLS"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, name, strlen(name)) < 0) abort();
    close(file);
}
static void *wait_for_ever(void *nothing) { for (;;) pause(); return nothing; }
int cuInit(unsigned flags) {
    pthread_t thread;
    note("cuInit\n");
    if (getenv("STUB_THREAD")) return pthread_create(&thread, 0, wait_for_ever, 0) + 100;
    return open("/dev/full", O_RDWR) < 0 ? 999 : 100;
}
int cuDriverGetVersion(int *version) { note("cuDriverGetVersion\n"); *version = 13000; return 0; }
static int other(void) { note("other\n"); return 100; }
typedef unsigned long long word;
static int find(const char *name, void **function, int version, word flags, int *state) {
    *function = (void *)other;
    if (!strcmp(name, "cuInit")) *function = (void *)cuInit;
    if (!strcmp(name, "cuDriverGetVersion")) *function = (void *)cuDriverGetVersion;
    if (!strncmp(name, "cuGetProcAddress", 16)) *function = (void *)find;
    if (state) *state = 0;
    return 0;
}
int cuGetProcAddress_v2(const char *name, void **f, int v, unsigned long long l, int *s) {
    return find(name, f, v, l, s);
}
int cuGetProcAddress(const char *name, void **f, int v, unsigned long long l) {
    return find(name, f, v, l, 0);
}
"""


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the stub is CUDA's driver."""
    (tmp_path / "stub.c").write_text(STUB)
    library = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "stub.c"), "-lpthread"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    (tmp_path / "looks.py").write_text("import torch\ntorch.cuda.is_available()\n")
    (tmp_path / "inits.py").write_text(
        "import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "import torch\nassert not torch.cuda.is_initialized()\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")]))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": path,
        "PYTHONPATH": str(tmp_path),
        "STUB_CALLS": str(tmp_path / "calls"),
    }


def readiness(preload: list[str], environ: dict[str, str]) -> tuple[KeeperReady, list[str]]:
    """Start a keeper; return what it reports, and which functions of the driver were called."""
    with AgentProcess(preload=preload, environ=environ) as agent:
        ready = agent.ready
    calls = Path(environ["STUB_CALLS"])
    return ready, calls.read_text().split() if calls.exists() else []


def test_the_default_preload_calls_no_driver(stub: dict[str, str]) -> None:
    """Importing torch, and with it triton where that is installed, leaves CUDA alone."""
    ready, calls = readiness([*DEFAULT_PRELOAD], stub)
    assert (ready.cold_reason, calls) == ("", [])


@pytest.mark.parametrize(
    ("leaves", "why"),
    [
        ({}, "something preloaded has opened /dev/full"),
        ({"STUB_THREAD": "1"}, "the warm interpreter has 2 threads"),
    ],
)
def test_a_preload_that_calls_the_driver_makes_no_warm_workers(
    leaves: dict[str, str], why: str, stub: dict[str, str]
) -> None:
    """Whether torch says that CUDA is initialised or not: here it does not."""
    ready, calls = readiness(["inits"], {**stub, **leaves})
    assert calls == ["cuInit"]
    assert why in ready.cold_reason


def test_a_preload_that_asks_for_gpus_is_warm_only_if_the_driver_was_not_called(
    stub: dict[str, str],
) -> None:
    """A build of torch for CPUs asks nobody; one for CUDA calls cuInit."""
    ready, calls = readiness(["looks"], stub)
    assert bool(ready.cold_reason) == ("cuInit" in calls), (ready.cold_reason, calls)
