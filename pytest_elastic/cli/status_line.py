"""What is under way, in the last line of a terminal; elsewhere lines are printed as they are."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StatusLine"]

# Whole seconds are shown: written more often, most lines would say the same.
_REFRESH_S = 1.0
_LIMIT_S = 5.0
_CLEAR = "\r\x1b[K"


class StatusLine:
    """Prints lines, and keeps what `status` returns below them where there is a terminal."""

    def __init__(self, status: Callable[[], str]) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._thread = threading.Thread(target=self._refresh, name="status", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join(_LIMIT_S)
            self._write(_CLEAR)

    def tell(self, text: str) -> None:
        """Print a line that stays."""
        self._write(f"{_CLEAR if self._thread is not None else ''}{text}\n")

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            # One column less, or some terminals begin a new line.
            self._write(f"{_CLEAR}{self._status()[: shutil.get_terminal_size().columns - 1]}")

    def _write(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()
