"""What a kernel may be built without, and the harness does without then."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Hides the kernel's settings from itself, as a kernel that does not have them.
_PROGRAM = """
import os
from elastic_harness.cluster.node import namespace as ns

try:
    if os.geteuid() != 0:
        ns.enter_user_namespace()
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
    ns.mount("tmpfs", "/proc/sys/kernel", "tmpfs", 0)
except OSError as error:
    raise SystemExit(f"cannot hide settings: {error}")
ns.set_next_pid(1000)
print("went on")
"""


def test_process_numbers_are_left_to_a_kernel_that_cannot_be_told_them() -> None:
    """One built without CONFIG_CHECKPOINT_RESTORE has no `ns_last_pid`, and makes nodes as well."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    if done.stderr.startswith("cannot hide"):
        pytest.skip(done.stderr)
    assert done.stdout == "went on\n", done.stderr
