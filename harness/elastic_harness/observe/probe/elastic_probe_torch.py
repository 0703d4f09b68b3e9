# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: ANN401 (torch's objects have no type where torch may not be imported)
# ruff: noqa: SIM105 (contextlib costs more at start-up than all of this file)
"""What the probe learns from torch, as soon as the script has imported it.

Nothing here imports torch: it waits behind the import system, or finds torch loaded in an
interpreter that was warm. Nothing of the user's is wrapped; steps come from the global hooks that
torch has for such purposes. Where the state at the end is asked for, `torch.autograd.backward`,
which has no hook, is wrapped, and DistributedDataParallel keeps its first buckets. Data loaders and
that state are seen on request only, by modules of their own.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from elastic_harness.observe.probe.elastic_probe_parameters import ParameterSide
    from elastic_harness.observe.probe.elastic_probe_wire import now, quoted
    from elastic_harness.observe.probe.elastic_probe_worker import Probe
else:
    from elastic_probe_wire import now, quoted

__all__ = ["TorchSide"]

# So many losses are kept: enough to tell noise from a difference, and scalars cost nothing.
_LAST_LOSSES = 20


class TorchSide:
    """What is only known once torch is imported: optimizers, the process group, data loaders."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._primary: Any = None  # weak reference to the optimizer with most parameters
        self._primary_size = 0
        self._sizes: Any = None  # by optimizer, weakly
        self._state: tuple[str, Any, Any] | None = None  # its kind, state and groups, for the end
        self._loss: Any = None  # the scalar that backward() was last called on, on its device
        self._losses: list[Any] = []  # of the last steps
        self._stepper: Any = None  # weak reference to a parameter whose state counts steps
        self._inner: Any = None  # the state of an optimizer that stepped since the last began to
        self._step: int | None = None  # the newest that the primary optimizer has counted
        self._is_on_device = False  # whether it counts there
        self._parameters: ParameterSide | None = None  # where no optimizer counts steps
        self._has_group = False

    def install(self) -> None:
        """Attach to torch's modules now, or as soon as the script imports them."""
        after: dict[str, Callable[[ModuleType], None]] = {
            "torch.optim.optimizer": self._on_optimizers
        }
        if self._probe.wants_hash:
            after["torch.nn.parallel.distributed"] = _keep_first_buckets
        if self._probe.wants_samples:
            loaders = self._probe.load("elastic_probe_loaders").Loaders(self._probe)
            after["torch.utils.data.dataloader"] = loaders.watch
        for name in list(after):
            if (module := sys.modules.get(name)) is not None:
                after.pop(name)(module)
        if after:
            sys.meta_path.insert(0, _AfterImport(after))
        self._probe.steps.has_optimizer = _has_optimizer
        self._probe.on_step = self._look_for_group
        self._probe.on_finish = self._on_finish

    # --- optimizers ----------------------------------------------------------------------------

    def _on_optimizers(self, module: ModuleType) -> None:
        import weakref

        self._sizes = weakref.WeakKeyDictionary()
        module.register_optimizer_step_pre_hook(self._before_optimizer_step)
        module.register_optimizer_step_post_hook(self._on_optimizer_step)
        if self._probe.wants_hash:
            self._watch_losses(sys.modules["torch.autograd"])

    def _before_optimizer_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Look at the parameters, where the optimizer is not known to count its steps."""
        self._inner = None
        counts = bool(self._stepper) and self._primary is not None and self._primary() is optimizer
        if counts or not self._probe.wire.is_open:
            return
        if self._parameters is None:
            part = self._probe.load("elastic_probe_parameters")
            self._parameters = part.ParameterSide(self._probe)
        self._parameters.before_step(optimizer)

    def _on_optimizer_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        state = _state_of(optimizer, self._inner)
        self._inner = state
        if _changes_nothing(optimizer):
            return
        step = self._primary_step(optimizer, state)
        if self._probe.wants_hash and self._primary is not None and self._primary() is optimizer:
            # Not the optimizer itself: while we keep it, another one would not take its place.
            self._state = type(optimizer).__name__, state, optimizer.param_groups
            if self._loss is not None:
                self._losses = [*self._losses[1 - _LAST_LOSSES :], self._loss]
                self._loss = None
        if self._probe.wants_rate and step is not False:
            self._probe.rate = _rate_of(optimizer)
        # Outside of any `except`: a signal handler of the script may raise in a hold or a question.
        if step is None:
            step = self._parameters.step_after(optimizer) if self._parameters else None
            self._probe.optimizer_stepped(step, "process" if step is None else "parameters")
        elif step is not False:
            self._probe.optimizer_stepped(step, "state")

    def _primary_step(self, optimizer: Any, state: Any) -> int | bool | None:
        """Return the global step (None: unknown) of the primary optimizer, False for others."""
        try:
            primary = self._primary() if self._primary is not None else None
            if optimizer is not primary:
                import weakref

                size = self._size_of(optimizer)
                if primary is not None and size <= self._primary_size:
                    return False
                self._primary, self._primary_size = weakref.ref(optimizer), size
                if self._stepper or not self._step:
                    self._stepper = None  # unless steps were counted that turned out to be others
                if primary is not None:
                    return False  # the smaller one has counted this step already
            return self._step_in_state(optimizer, state)
        except Exception:  # noqa: BLE001 (an optimizer of an unforeseen make is not a reason to fail)
            return None

    def _size_of(self, optimizer: Any) -> int:
        size = self._sizes.get(optimizer)
        if size is None:
            size = self._sizes[optimizer] = sum(p.numel() for p in _parameters_of(optimizer))
        return int(size)

    def _step_in_state(self, optimizer: Any, state: Any) -> int | None:
        """Return how many steps the optimizer's state counts; None where it counts none.

        That is what its parameter counts that was in most steps: others are trained later, or not
        in every step. A count that does not go up by one is of something else than steps of the
        training (an optimizer that steps less often, or in place of another), from here on.
        """
        if self._stepper is False:
            return None
        parameter = self._stepper() if self._stepper is not None else None
        before = self._step
        if parameter is not None and self._is_on_device and before is not None:
            # Reading a device's memory waits for the device: once is enough, from there we count.
            self._step = before + 1
            return self._step
        self._step = _counted(state, parameter)
        if self._step is None or self._step == before:
            import weakref

            counts = [(_counted(state, each) or 0, each) for each in _parameters_of(optimizer)]
            self._step, parameter = max(counts, key=lambda each: each[0], default=(0, None))
            self._stepper = weakref.ref(parameter) if self._step > 0 else False
            self._is_on_device = self._step > 0 and _is_on_device(state[parameter]["step"])
        if self._step == 0 or (before and self._step != before + 1):
            self._stepper = False  # nothing is counted (plain SGD), or something else than steps
            return None
        return self._step

    def _watch_losses(self, autograd: ModuleType) -> None:
        """Remember what `backward()` is called on: `Tensor.backward` looks it up at each call."""
        import functools

        backward = autograd.backward

        @functools.wraps(backward)
        def remembering(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = backward(tensors, *args, **kwargs)
            try:
                if tensors.numel() == 1:
                    # A copy, as scripts reduce a loss in place; reading it would wait for a device.
                    self._loss = tensors.detach().clone()
            except Exception:  # noqa: BLE001, S110 (several tensors, or none of torch's own)
                pass
            return result

        autograd.backward = remembering  # type: ignore[attr-defined]

    # --- the process group ---------------------------------------------------------------------

    def _look_for_group(self) -> None:
        """Leave or find the nonce of this world in the default group's store, once."""
        if self._has_group:
            return
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        try:
            if c10d is None or not c10d.is_initialized():
                return
            self._has_group = True
            store = c10d._get_default_store()  # noqa: SLF001 (no public way to the store)
            size = int(c10d.get_world_size())
            # torchrun keeps one store for all rounds: of another size, at least, is another key.
            key, mine = f"elastic_probe/nonce/{size}", os.urandom(8).hex()
            nonce = bytes(store.compare_set(key, "", mine)).decode()
        except Exception:  # noqa: BLE001 (a store of another make, or one that is gone)
            return
        self._probe.say("group_formed", f'"world_size":{size},"nonce":{quoted(nonce)}', now())

    # --- the end -------------------------------------------------------------------------------

    def _on_finish(self) -> None:
        # An uncaught exception has left its mark by now; such parameters say nothing.
        if self._state is None or hasattr(sys, "last_type"):
            return
        part = self._probe.load("elastic_probe_state")
        self._probe.say(
            "parameters_hashed",
            part.describe(*self._state, self._probe.steps.step, self._losses),
            now(),
        )


class _AfterImport:
    """A finder that finds nothing, but calls back when certain modules have been executed."""

    def __init__(self, after: dict[str, Callable[[ModuleType], None]]) -> None:
        self._after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the others find the module, and stand behind its loader."""
        if name not in self._after:
            return None
        callback = self._after.pop(name)
        if not self._after:
            sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, callback)  # type: ignore[assignment]
                return spec
        return None


class _CallingLoader:
    """Executes a module with its own loader, puts that back in its place, then calls back."""

    def __init__(self, loader: Any, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module as its own loader does, then call back."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            self._callback(module)
        except Exception:  # noqa: BLE001, S110 (another torch than we know: nothing is observed)
            pass


def _keep_first_buckets(_module: ModuleType) -> None:
    """Have DistributedDataParallel add gradients in one order, before and after a restart.

    It arranges its buckets anew after the first step of each process. From three ranks on, sums of
    other buckets are rounded otherwise, and a restart alone makes a job end with other parameters.
    Fewer do so as ever: until then, it remembers some 20 bytes for each parameter and step.
    """
    size = sys.modules["torch.distributed.distributed_c10d"].get_world_size
    kind: Any = sys.modules["torch._C._distributed_c10d"].Reducer
    arrange = kind._rebuild_buckets  # noqa: SLF001 (there is no public way)
    kind._rebuild_buckets = lambda self: size() < 3 and arrange(self)  # noqa: SLF001


def _rate_of(optimizer: Any) -> float | None:
    try:
        rate = float(optimizer.param_groups[0]["lr"])
    except Exception:  # noqa: BLE001 (an optimizer of an unforeseen make)
        return None
    return rate if rate - rate == 0 else None  # JSON has neither infinity nor nan


def _state_of(optimizer: Any, inner: Any) -> Any:
    """Return an optimizer's state; that of an `inner` one, if that has stepped in its place.

    What a ZeroRedundancyOptimizer has itself is what it has loaded last.
    """
    try:
        if inner and any(each in inner for each in _parameters_of(optimizer)):
            return inner
        return optimizer.state
    except Exception:  # noqa: BLE001 (an optimizer of an unforeseen make)
        return {}


def _counted(state: Any, parameter: Any) -> int | None:
    """Return how many steps an optimizer's state counts of a parameter; None if it does not."""
    found = state.get(parameter) if parameter is not None else None
    return int(found["step"]) if found and "step" in found else None


def _is_on_device(step: Any) -> bool:
    device = getattr(step, "device", None)
    return device is not None and device.type != "cpu"


def _changes_nothing(optimizer: Any) -> bool:
    """Tell a step that only creates an optimizer's state from one of the training.

    torch.distributed.checkpoint makes such a step before it loads: all learning rates and all
    gradients are 0. The gradients are looked at only where the rates, on no device, are 0.
    """
    try:
        for group in optimizer.param_groups:
            rate = group["lr"]
            if getattr(rate, "is_cuda", False) or float(rate) != 0:
                return False
        for each in _parameters_of(optimizer):
            if (gradient := each.grad) is not None:
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                if bool(local.any()):
                    return False
    except Exception:  # noqa: BLE001 (an optimizer of an unforeseen make)
        return False
    return True


def _parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _has_optimizer() -> bool:
    """Tell whether an optimizer was made in this process: torch marks its class then."""
    module = sys.modules.get("torch.optim.optimizer")
    kinds = [] if module is None else [module.Optimizer]
    for kind in kinds:
        if getattr(kind.step, "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False
