# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: ANN401 (torch's objects have no type where torch may not be imported)
# ruff: noqa: SIM105 (contextlib costs more at start-up than all of this file)
"""The steps of an optimizer that counts none (plain SGD), by its parameters.

A script that resumes begins with the parameters that some step before has left, to the bit. So the
harness is told a digest of some of them before the first step and after each one, and knows which
step they are of. What changes them between two steps may be a clamp, or a checkpoint that is loaded
in the middle: the harness is asked then, too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in the probe's other modules
if TYPE_CHECKING:
    from typing import Any

    from elastic_harness.observe.probe.elastic_probe_worker import Probe

__all__ = ["ParameterSide", "digest_of"]

# So many numbers of so many parameters, evenly spread: some 0.5 ms, of a model of any size.
_PARAMETERS = 64
_NUMBERS = 64


class ParameterSide:
    """The global steps of one process, as far as the parameters tell them."""

    def __init__(self, probe: Probe) -> None:
        import weakref

        self._probe = probe
        self._before: Any = weakref.WeakKeyDictionary()  # by optimizer: what its next step changes
        self._left: str | None = None  # what the last step has left
        self._base: int | None = None  # steps that were done before this process

    def before_step(self, optimizer: Any) -> None:
        """Look at what a step begins with; the newest look counts, if the step fails."""
        try:
            self._before[optimizer] = digest_of(optimizer)
        except Exception:  # noqa: BLE001, S110 (an optimizer that cannot be a key)
            pass

    def step_after(self, optimizer: Any) -> int | None:
        """Return which global step was made; None where that is not known, now and from here on."""
        probe, steps = self._probe, self._probe.steps
        if probe.reads_steps or steps.is_reported:
            return None
        try:
            before = self._before.pop(optimizer, None)
        except Exception:  # noqa: BLE001 (as above)
            before = None
        if before is None:
            self._base = None
        elif steps.is_unplaced:
            probe.began_with = before
            self._base = probe.ask_steps_done(before, None)
        elif self._base is not None and before != self._left:
            done = probe.ask_steps_done(before, self._base + steps.count)
            self._base = None if done is None else self._base
        self._left = probe.left = digest_of(optimizer)
        return None if self._base is None else self._base + steps.count + 1


def digest_of(optimizer: Any) -> str | None:
    """Return a digest of what this process holds of the parameters; None if they have no bytes."""
    try:
        return _digest([p for group in optimizer.param_groups for p in group["params"]])
    except Exception:  # noqa: BLE001 (meta tensors have no bytes, for example)
        return None


def _digest(parameters: list[Any]) -> str | None:
    import hashlib

    torch: Any = sys.modules["torch"]
    digest = hashlib.blake2b(digest_size=8)
    taken: dict[Any, list[Any]] = {}  # by device: reading a device's memory waits for the device
    trained = [parameter for parameter in parameters if parameter.requires_grad]
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
    return digest.hexdigest() if taken else None


def _spread(values: Any, most: int) -> Any:
    """Return at most so many of the values, evenly spread."""
    return values[:: -(-len(values) // most) or 1]
