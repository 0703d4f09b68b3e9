"""A command whose processes may watch few folders by inotify, by a limit of the kernel's own."""

from __future__ import annotations

import subprocess

import pytest

__all__ = ["needs_a_user_namespace", "with_few_watches"]


def with_few_watches(watches: int) -> list[str]:
    """Return what to put before a command: in its user namespace there are so many watches."""
    limited = f"echo {watches} > /proc/sys/user/max_inotify_watches"
    return ["unshare", "--user", "--map-root-user", "sh", "-ec", f'{limited}; exec "$@"', "sh"]


def _can() -> bool:
    try:
        return subprocess.run([*with_few_watches(1), "true"], check=False).returncode == 0
    except OSError:
        return False


needs_a_user_namespace = pytest.mark.skipif(not _can(), reason="needs a user namespace of its own")
