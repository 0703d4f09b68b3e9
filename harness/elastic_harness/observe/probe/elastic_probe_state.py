# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: ANN401 (torch's objects have no type where torch may not be imported)
"""What a worker's training ended with; loaded at the end of a worker, where that is asked for.

A digest says whether two states are the same to the bit. A *sketch* says how far apart they are
where they are not: a few sums of all values, each with random signs (the same in every run). The
squares of their differences add up to the squared distance, about (Johnson and Lindenstrauss).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in the probe's other modules
if TYPE_CHECKING:
    from collections.abc import Iterator
    from hashlib import _Hash
    from typing import Any

__all__ = ["describe", "digest_of", "sketch_of"]

_MAX_BLOCKS = 64
# Small models have several sketches, which costs nothing and makes the distance exact to some 10 %.
_MAX_SKETCHES = 8
_MAX_SUMS = 256
_SIGNS_IN_ALL = 1 << 22
_PIECE = 1 << 20


def describe(kind: str, state: Any, groups: Any, step: int | None, losses: list[Any]) -> str:
    """Return an optimizer's state, its parameters and losses as the inside of a JSON object."""
    import json

    told: dict[str, Any] = {"step": step, "digest": None, "reason": ""}
    try:
        told["losses"] = [_finite(float(each)) for each in losses]
        told["sharded"] = _sharded(kind, groups)
        parameters = [_local(each) for group in groups for each in group["params"]]
        told["digest"] = digest_of(parameters)
        told |= sketch_of(parameters)
        told["is_finite"] = told["norm"] is not None
        values = list(_values_of(state, groups))
        told["optimizer"] = digest_of(values)
        tensors = [value for value in values if hasattr(value, "untyped_storage")]
        told |= {f"optimizer_{name}": value for name, value in sketch_of(tensors).items()}
        told["optimizer_is_finite"] = told["optimizer_norm"] is not None
        told["lr"] = [float(group["lr"]) for group in groups if "lr" in group]
        told["random"] = _random()
    except Exception as problem:  # noqa: BLE001 (meta tensors have no bytes, for example)
        told["reason"] = f"{type(problem).__name__}: {problem}"[:200]
    return json.dumps(told)[1:-1]


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None  # JSON has neither infinity nor nan


def _local(tensor: Any) -> Any:
    """Return what this process holds of a tensor, in its memory."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.detach().cpu().contiguous()


def _values_of(state: Any, groups: Any) -> Iterator[Any]:
    """Yield the settings and state of an optimizer, in an order that is the same in every run."""
    for group in groups:
        yield from _walk({key: value for key, value in group.items() if key != "params"})
        for parameter in group["params"]:
            yield from _walk(state.get(parameter) or {})


def _walk(value: Any) -> Iterator[Any]:
    """Yield what a value consists of: texts, numbers as text, and tensors."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            if value[key] is not None:  # some versions of torch leave such keys out
                yield str(key)
                yield from _walk(value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
    elif hasattr(value, "untyped_storage"):
        yield _local(value)
    elif isinstance(value, str | bool) or value is None:
        yield repr(value)
    else:
        try:
            yield repr(float(value))  # also numpy's
        except (TypeError, ValueError):
            yield type(value).__qualname__


def digest_of(values: list[Any]) -> str:
    """Return a digest of texts and tensors, to the bit."""
    import hashlib

    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            digest.update(f"{len(value)}:{value}".encode())
        else:
            _add(digest, value)
    return digest.hexdigest()


def _add(digest: _Hash, tensor: Any) -> None:
    import ctypes

    size = tensor.numel() * tensor.element_size()
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if size:
        digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))


def sketch_of(tensors: list[Any]) -> dict[str, Any]:
    """Return the `norm` of all values (None: some are not finite), and `norms` and `sketch`.

    `norms` has one of each block; sketch after sketch has a sum of each block.
    """
    import math

    torch: Any = sys.modules["torch"]
    tensors = [
        torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in tensors
    ]
    tensors = [each for each in tensors if each.is_floating_point()]
    size = sum(each.numel() for each in tensors)
    blocks = max(1, min(_MAX_BLOCKS, len(tensors)))
    by_size = sorted(range(len(tensors)), key=lambda number: -tensors[number].numel())
    # Half of the blocks are for one tensor each if there are more tensors than blocks.
    alone = blocks if len(tensors) == blocks else blocks // 2
    block_of = {
        number: place
        if place < alone
        else alone + (place - alone) * (blocks - alone) // (len(tensors) - alone)
        for place, number in enumerate(by_size)
    }
    most = min(_MAX_SKETCHES, _MAX_SUMS // blocks)
    sketches = max(1, min(most, _SIGNS_IN_ALL // max(1, size)))
    squares, sums = [0.0] * blocks, [0.0] * (blocks * sketches)
    for number, tensor in enumerate(tensors):
        # The generator is our own: the script's random numbers stay as they are.
        signs = torch.Generator(device="cpu").manual_seed(number)
        block = block_of[number]
        for piece in tensor.reshape(-1).split(_PIECE):
            values = piece.double()
            squares[block] += float(values @ values)
            for sketch in range(sketches):
                drawn = torch.randint(0, 2, values.shape, generator=signs, device="cpu")
                sums[sketch * blocks + block] += float(values @ (drawn.double() * 2 - 1))
    if not math.isfinite(sum(squares)):
        return {"norm": None, "norms": [], "sketch": []}
    return {
        "norm": math.sqrt(sum(squares)),
        "norms": [math.sqrt(each) for each in squares],
        "sketch": [each / math.sqrt(sketches) for each in sums],
    }


def _sharded(kind: str, groups: Any) -> list[str]:
    """Return what of the state is divided among the ranks, so that none of them has all of it."""
    found = []
    for group in groups:
        for each in group["params"]:
            placements = getattr(each, "placements", ())
            if type(each).__name__ == "FlatParameter" or not all(
                placement.is_replicate() for placement in placements
            ):
                found = ["parameters", "optimizer"]
    if not found and kind == "ZeroRedundancyOptimizer":
        found = ["optimizer"]
    return found


def _random() -> dict[str, str]:
    """Return digests of the states of all random numbers that this process has."""
    import hashlib

    torch: Any = sys.modules["torch"]
    states = {"torch": bytes(torch.get_rng_state().tolist())}
    if torch.cuda.is_initialized():
        states["cuda"] = b"".join(bytes(each.tolist()) for each in torch.cuda.get_rng_state_all())
    if (python := sys.modules.get("random")) is not None:
        states["python"] = repr(python.getstate()).encode()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        kind, keys, *rest = numpy.get_state()
        states["numpy"] = repr((kind, keys.tobytes(), rest)).encode()
    return {name: hashlib.sha256(state).hexdigest()[:16] for name, state in states.items()}
