"""Trace which variables libraries read by getenv: `python -m tests.library_reads` prints them.

A library that stands before the C library notes each name that getenv and secure_getenv are asked
for while `import torch, torch._dynamo` runs. What is printed and is not in
`pytest_elastic.workers.warm.library_reads` has to be added there; needs a C compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["trace"]

_LIMIT_S = 240.0
_NOTE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef char *(*reader)(const char *);
static char *ask(const char *function, const char *name) {
    reader real = (reader)dlsym(RTLD_NEXT, function);
    const char *path = ((reader)dlsym(RTLD_NEXT, "getenv"))("GETENV_NOTES");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (file >= 0) {
        char line[1024];
        size_t length = strlen(name);
        if (length < sizeof line) {
            memcpy(line, name, length);
            line[length] = '\\n';
            if (write(file, line, length + 1) < 0) abort();
        }
        close(file);
    }
    return real(name);
}
char *getenv(const char *name) { return ask("getenv", name); }
char *secure_getenv(const char *name) { return ask("secure_getenv", name); }
"""
_IMPORT = "import os; open(os.environ['GETENV_NOTES'], 'w').close(); import torch, torch._dynamo"


def trace(folder: Path) -> set[str]:
    """Return the names that are read by getenv in a new interpreter that imports torch."""
    source, library, notes = (folder / f"notes.{ending}" for ending in ("c", "so", "txt"))
    source.write_text(_NOTE)
    compiler = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(compiler, check=True, timeout=_LIMIT_S)
    subprocess.run(
        [sys.executable, "-c", _IMPORT],
        env={**os.environ, "LD_PRELOAD": str(library), "GETENV_NOTES": str(notes)},
        check=True,
        timeout=_LIMIT_S,
    )
    # Python's own, at its end.
    return set(notes.read_text().split()) - {"PYTHONINSPECT"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write("\n".join(sorted(trace(Path(place)))) + "\n")
