# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: ANN401 (torch's objects have no type where torch may not be imported)
"""A digest of an optimizer's parameters, for optimizers that count no steps (plain SGD).

A script that resumes begins with the parameters that some step before has left. Some numbers of
some parameters are enough to tell which step that was: they are compared to the bit.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in the probe's other modules
if TYPE_CHECKING:
    from typing import Any

__all__ = ["digest_of"]

# So many numbers of so many parameters, evenly spread: some 0.5 ms a step, of a model of any size.
_PARAMETERS = 64
_NUMBERS = 64


def digest_of(optimizer: Any) -> str | None:
    """Return a digest of what this process holds of the parameters; None if they have no bytes."""
    import hashlib

    torch: Any = sys.modules["torch"]
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    digest = hashlib.blake2b(digest_size=8)
    taken: dict[Any, list[Any]] = {}  # by device: reading a device's memory waits for the device
    try:
        for parameter in _spread(trained, _PARAMETERS):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if local.is_cuda and torch.cuda.is_current_stream_capturing():
                return None  # to read it would spoil the script's graph
            as_stored = sorted(range(local.dim()), key=local.stride, reverse=True)
            numbers = _spread(local.detach().permute(as_stored).reshape(-1), _NUMBERS)
            digest.update(f"{local.dtype}{tuple(local.shape)}".encode())
            taken.setdefault((str(local.device), local.dtype), []).append(numbers)
        for numbers in taken.values():
            digest.update(bytes(torch.cat(numbers).view(torch.uint8).tolist()))
    except Exception:  # noqa: BLE001 (meta tensors have no bytes, for example)
        return None
    return digest.hexdigest() if taken else None


def _spread(values: Any, most: int) -> Any:
    """Return at most so many of the values, evenly spread."""
    return values[:: -(-len(values) // most) or 1]
