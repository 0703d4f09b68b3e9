"""Reads what torch, safetensors, numpy and pickle wrote, in a process of its own (`main`).

Classes that were pickled are not loaded: they are the script's, and need not be there.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from numbers import Real
from typing import Any

from elastic_harness.checkup.saved_state import Part, is_known

__all__ = ["CheckpointReader", "main"]

# A larger one takes longer to read than a check-up should wait for.
_MOST_BYTES = 1 << 30
_PATIENCE_S = 60.0
# Says what is in a folder of torch.distributed.checkpoint.
_OF_A_FOLDER = ".metadata"
# Where, when and how often a process began, or how an object of torch was made.
_OF_NO_STATE = re.compile(
    r"restart|resum|attempt|launch|incarnation|retr(y|ies)|time(?!step)|elapsed|second|minute|hour|"
    r"duration|per_sec|throughput|(^|[._])(start|begin|from|loaded|rng|random|"
    r"(pid|port|host|node|rank)(_|$))|(^|\.)_",
    re.IGNORECASE,
)
_MOST_NUMBERS = 1000
# Without the folder that the check-up was called in: a script may have a module of any name there.
_READ = f"import sys; sys.path = [*filter(None, sys.path)]; from {__name__} import main; main()"


class CheckpointReader:
    """Has checkpoints read by a process of its own, which `close` ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _READ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self, path: str) -> Mapping[str, Part] | None:
        """Return the parts of a checkpoint, a file or a folder: none, if it cannot be read.

        None if that is not known: reading took too long, or the process was ended.
        """
        deadline = time.monotonic() + _PATIENCE_S
        with self._lock:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None, "it was started with pipes"
            assert stdout is not None, "it was started with pipes"
            try:
                stdin.write(f"{json.dumps(path)}\n".encode())
                stdin.flush()
                said = b""
                while not said.endswith(b"\n"):
                    left_s = max(0.0, deadline - time.monotonic())
                    if not select.select([stdout], [], [], left_s)[0]:
                        self._process.kill()
                        return None
                    more = os.read(stdout.fileno(), 1 << 16)
                    if not more:
                        return None
                    said += more
            except (OSError, ValueError):  # it has ended, or was closed
                return None
        parts: Mapping[str, Part] = json.loads(said)
        return parts

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


# --- the process that reads -----------------------------------------------------------------------


def main() -> None:
    """Answer each line of standard input, the path of a file or folder, with its parts."""
    for line in sys.stdin:
        try:
            parts = _parts_at(json.loads(line))
        except Exception:  # noqa: BLE001 (whatever a file may be: nothing is known of it then)
            parts = {}
        sys.stdout.write(f"{json.dumps(parts)}\n")
        sys.stdout.flush()


def _parts_at(path: str) -> dict[str, Part]:
    paths = [path]
    if os.path.isdir(path):
        paths = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
    if sum(map(os.path.getsize, paths)) > _MOST_BYTES:
        return {}
    parts: dict[str, Part] = {}
    for each in paths:
        file = os.path.basename(each)
        for name, value in _split(_load(each)):
            is_alone = len(paths) == 1 or file == _OF_A_FOLDER
            told = (name if is_alone else f"{file} {name}".strip()) or file
            tensors = list(_tensors_in(value, {}))
            measured = [tensor for tensor in tensors if _is_measured(tensor)]
            # A count may be so large that nothing could be told of what is beside it.
            counted = [tensor for tensor in tensors if not _is_measured(tensor)]
            for part, found in ((told, measured), (f"whole numbers of {told}", counted)):
                if found:
                    parts[part] = _described(found)
            if numbers := _numbers_in(name, value):
                parts[told] = {**_described(numbers), "is_number": True}
    return parts


def _load(path: str) -> object:
    """Return what was saved in a file; None if it is no checkpoint (a JSON file, for example)."""
    if path.endswith(".distcp"):
        return None  # tensors of one rank: all are read together
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file  # type: ignore[import-not-found, unused-ignore]

            return load_file(path)
        if path.endswith((".npz", ".npy")):
            return _load_of_numpy(path)
        if path.endswith((".pkl", ".pickle")) and not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                return _Unpickler(file).load()
        if os.path.basename(path) == _OF_A_FOLDER:
            from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

            with tempfile.TemporaryDirectory() as folder:
                one_file = os.path.join(folder, "all.pt")
                dcp_to_torch_save(os.path.dirname(path), one_file)
                return _load(one_file)
        import torch

        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Pickles)
    except BaseException:  # noqa: BLE001 (whatever a file may be; a CheckpointException is no less)
        return None


def _load_of_numpy(path: str) -> object:
    """Return the arrays of a file by name: what has no dimension is a number, of objects none."""
    import numpy as np

    loaded = np.load(path)
    if path.endswith(".npy"):
        return loaded
    arrays = {}
    for name in loaded.files:
        with suppress(ValueError):  # pickled: its classes would be loaded
            arrays[name] = loaded[name] if loaded[name].ndim else loaded[name].item()
    return arrays


class _Nothing:
    """Stands for an object of a class that is not loaded: it keeps what it was made of."""

    def __init__(self, *arguments: object, **_: object) -> None:
        self.made_of = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __call__(self, *arguments: object, **_: object) -> _Nothing:
        return _Nothing(self, *arguments)

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__[str(key)] = value

    def append(self, value: object) -> None:
        """Take a value as a list does."""
        self.__dict__[str(len(self.__dict__))] = value

    def extend(self, values: object) -> None:
        """Take values as a list does."""
        self.append(values)


# What numpy's numbers and arrays are made of.
_OF_NUMPY = ("dtype", "scalar", "ndarray", "_reconstruct", "_frombuffer")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (any class)
        """Load torch's own classes and plain values; anything else is kept as what it holds."""
        is_plain = module == "builtins" and name in ("set", "frozenset", "complex", "bytearray")
        package = module.partition(".")[0]
        is_plain = is_plain or (package == "numpy" and name in _OF_NUMPY)
        if is_plain or module in ("collections", "_codecs") or package == "torch":
            return super().find_class(module, name)
        return _Nothing


class _Pickles:
    """What torch.load takes for the module `pickle`."""

    Unpickler = _Unpickler
    load = staticmethod(lambda file, **named: _Unpickler(file, **named).load())
    __name__ = "pickle"


def _split(loaded: object, name: str = "", depth: int = 2) -> Iterator[tuple[str, object]]:
    """Yield the parts of a checkpoint by name: `model`, `extra.ema`; tensors beside each other."""
    inside = _named_in(loaded)
    if inside is None or depth == 0:
        yield name, loaded
        yield from islice(_known_numbers_below(inside or {}, name), _MOST_NUMBERS)
        return
    tensors = {key: value for key, value in inside.items() if hasattr(value, "untyped_storage")}
    yield name, tensors
    is_crowded = sum(isinstance(value, Real) for value in inside.values()) > _MOST_NUMBERS
    for key, value in inside.items():
        if key not in tensors and not (is_crowded and isinstance(value, Real)):  # a vocabulary
            yield from _split(value, f"{name}.{key}" if name else key, depth - 1)


def _named_in(value: object) -> dict[str, Any] | None:
    """Return what a dict has under names, or an object that was not loaded; None: neither."""
    if isinstance(value, _Nothing):
        value = vars(value).get("state")
        if isinstance(value, tuple):  # of a class with slots
            parts = [one for one in value if isinstance(one, dict)]
            value = {key: each for one in parts for key, each in one.items()}
    is_named = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    return value if is_named else None  # type: ignore[return-value]


def _known_numbers_below(loaded: Any, name: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """Yield what is deeper in a checkpoint and known by its name: no counters of frameworks."""
    for key, value in loaded.items():
        below = f"{name}.{key}"
        if isinstance(value, dict) and all(isinstance(each, str) for each in value):
            yield from _known_numbers_below(value, below)
        elif isinstance(value, Real) and is_known(below):
            yield below, value


def _tensors_in(value: Any, seen: dict[int, object]) -> Iterator[Any]:  # noqa: ANN401 (anything)
    """Yield all tensors, in an order that is the same in every run; states of random numbers, not.

    Those are of bytes, or numpy's numbers without a sign, and differ after each restart. What was
    `seen` is not looked at again: a schedule knows its optimizer, which may know it.
    """
    if hasattr(value, "untyped_storage"):
        if str(value.dtype) != "torch.uint8":
            yield value.to_local() if hasattr(value, "to_local") else value
        return
    if getattr(value, "ndim", 0) and hasattr(value, "__array_interface__"):
        if value.dtype.kind in "fcib":
            import torch

            yield torch.from_numpy(value.copy())
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept, or another object could have its number
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        inside = [value[key] for key in sorted(value, key=str)]
    elif isinstance(value, list | tuple):
        inside = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside = [vars(value)]
    for each in inside:
        yield from _tensors_in(each, seen)


def _numbers_in(name: str, value: Any) -> list[Any]:  # noqa: ANN401 (anything)
    """Return what stands under a name, a number or a list of them, as a tensor: none, if neither.

    The best loss, or a pair of it and how long ago it was.
    """
    import torch

    numbers = list(value) if isinstance(value, list | tuple) else [value]
    is_read = len(numbers) <= _MOST_NUMBERS and all(isinstance(each, Real) for each in numbers)
    if not is_read or not numbers or _OF_NO_STATE.search(name):
        return []
    try:
        return [torch.tensor([float(each) for each in numbers], dtype=torch.float64)]
    except OverflowError:
        return []


def _is_measured(tensor: Any) -> bool:  # noqa: ANN401 (torch's tensor)
    """Tell whether a tensor is of numbers that may be rounded."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _described(tensors: list[Any]) -> Part:
    from elastic_harness.observe.probe import elastic_probe_state as probe

    plain = [each.detach().contiguous() for each in tensors]
    numbers = [each if _is_measured(each) else each.double() for each in plain]
    size = sum(each.numel() for each in plain)
    return {"size": size, "digest": probe.digest_of(plain), **probe.sketch_of(numbers)}
