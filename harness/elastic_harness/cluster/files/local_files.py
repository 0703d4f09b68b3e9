"""Files of jobs on nodes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elastic_harness.cluster.facets import OnUnseen, OnWritten
from elastic_harness.cluster.files.damage import Place, corrupt_newest
from elastic_harness.cluster.files.folder_watch import FolderWatch
from elastic_harness.future import Future, Steps, run
from pytest_elastic.loop import Loop

__all__ = ["LocalFiles"]


class LocalFiles:
    """`Files`, by the file system.

    `private_folders(node)` are those that a node has for itself, where we find them, by what they
    are called there.
    """

    def __init__(self, loop: Loop, private_folders: Callable[[str], Mapping[str, str]]) -> None:
        self._loop = loop
        self._private_folders = private_folders

    def watch(self, folder: str, on_written: OnWritten, on_unseen: OnUnseen) -> Callable[[], None]:
        watch = FolderWatch(self._loop, folder, on_written, on_unseen)
        watch.start()
        return watch.close

    def corrupt(
        self, pattern: str, how: str, *, folders: Sequence[str], node: str | None = None
    ) -> Future[str]:
        return run(self._loop, self._corrupt(pattern, how, folders, node))

    def _corrupt(
        self, pattern: str, how: str, folders: Sequence[str], node: str | None
    ) -> Steps[str]:
        yield from ()
        own = {} if node is None else self._private_folders(node)
        places = [Place(name=folder, path=folder) for folder in folders]
        places += (Place(name=name, path=path) for name, path in own.items())
        return corrupt_newest(places, pattern, how)
