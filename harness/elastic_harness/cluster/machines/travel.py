"""How our own code comes to a machine that does not have it: with the agent, on standard input.

The command that starts an agent runs what it reads there, which is one line; then comes the code of
both packages, which is unpacked and used only where these very files are not installed. What an
agent leaves that was killed, the next one on that machine removes.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import os
import sys
import zipfile
from importlib import metadata
from typing import Final

import elastic_harness
import pytest_elastic
from pytest_elastic import __version__

__all__ = ["AGENT", "code_for_agents", "code_roots"]

_PROJECT: Final = "pytest-elastic"
_PACKAGES: Final = (elastic_harness, pytest_elastic)
_START: Final = (
    "import sys; exec(eval(sys.stdin.buffer.readline() "
    "or b'sys.exit(str(1) + \" line of standard input was expected, and there is none\")'))"
)
# What `ps` shows of it.
_NAME: Final = "elastic_harness.cluster.machines.agent"
# The command that runs an agent, to which `code_for_agents` is given; its arguments follow.
AGENT: Final = (sys.executable, "-c", _START, _NAME)

# Each node has a /tmp of its own, and would not see a folder there. An agent locks its folder; one
# that is not locked was left by an agent that was killed.
_BOOT: Final = """
import base64, fcntl, glob, io, os, shutil, sys, tempfile, zipfile, zlib
sys.argv = ["agent", *sys.argv[2:]]
if sys.path[:1] == [""]:
    del sys.path[0]
archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(sys.stdin.buffer.readline())))
folder, lock = "", -1
def is_here(entry):
    top, _, below = entry.filename.partition("/")
    if top not in ("elastic_harness", "pytest_elastic"):
        return True
    with open(os.path.join(__import__(top).__path__[0], below), "rb") as file:
        return zlib.crc32(file.read()) == entry.CRC
try:
    has_code = all(map(is_here, archive.infolist()))
except (ImportError, OSError):
    has_code = False
if not has_code:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("elastic_harness", "pytest_elastic"):
            del sys.modules[name]
    prefix = f"/var/tmp/pytest-elastic-{os.geteuid()}-"
    for old in glob.glob(prefix + "*"):
        try:
            if os.lstat(old).st_uid == os.geteuid():
                with open(old + "/lock") as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(old)
        except OSError:
            pass
    folder = tempfile.mkdtemp(prefix=prefix)
    lock = os.open(folder + "/lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    archive.extractall(folder)
    sys.path.insert(0, folder)
from elastic_harness.cluster.machines.agent_program import main
sys.exit(main(folder))
"""


def code_roots() -> list[str]:
    """Return the folders here in which the packages are."""
    return [os.path.dirname(package.__path__[0]) for package in _PACKAGES]


@functools.cache
def code_for_agents() -> bytes:
    """Return what `AGENT` reads first."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in _PACKAGES:
            root = os.path.dirname(package.__path__[0])
            for folder, folders, files in os.walk(package.__path__[0]):
                folders[:] = sorted(set(folders) - {"__pycache__"})
                for name in sorted(files):
                    path = os.path.join(folder, name)
                    archive.write(path, os.path.relpath(path, root))
        with contextlib.suppress(metadata.PackageNotFoundError):
            # So that what is registered by entry points is found there.
            for name in ("METADATA", "entry_points.txt"):
                text = metadata.distribution(_PROJECT).read_text(name) or ""
                archive.writestr(f"pytest_elastic-{__version__}.dist-info/{name}", text)
    return repr(_BOOT).encode() + b"\n" + base64.b64encode(packed.getvalue()) + b"\n"
