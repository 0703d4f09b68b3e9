# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""One worker under observation: its identity, steps and samples, the holds and orders."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from re import Pattern
    from types import ModuleType
    from typing import TextIO, TypeAlias

    from elastic_harness.observe.probe.elastic_probe_steps import StepCount
    from elastic_harness.observe.probe.elastic_probe_wire import HELLO_LIMIT_S, Wire, now, quoted

    # An epoch's number, and its source: "sampler", "script", or "counted" by the probe.
    Epoch: TypeAlias = tuple[int | None, str]
else:
    from elastic_probe_steps import StepCount
    from elastic_probe_wire import HELLO_LIMIT_S, Wire, now, quoted

__all__ = ["Probe"]

# A line that is longer than this, or has no end, says no step.
_MAX_LINE = 65536
_HOLD_LIMIT_S = 30.0
_FLUSH_LIMIT_S = 1.0
_MOST_CAUSES = 100


def _integer(text: str | None) -> str:
    """Return a number of the environment as JSON."""
    try:
        return str(int(text or ""))
    except ValueError:
        return "null"


def _parameters(digest: str | None) -> str:
    return "" if digest is None else f',"parameters":{quoted(digest)}'


def _name_of(ending: SystemExit | Exception) -> str:
    return "exit" if isinstance(ending, SystemExit) else "raise"


def _is_uncaught(ending: SystemExit | Exception) -> bool:
    """Tell whether the interpreter goes down of this; of an exit nothing else can be known."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    seen = 0
    while error is not None and error is not ending and seen < _MOST_CAUSES:
        error, seen = error.__cause__ or error.__context__, seen + 1
    return isinstance(ending, SystemExit) or error is ending


class Probe:
    """Who this worker is, the count of its steps, and the holds."""

    def __init__(self, environ: os._Environ[str], wire: Wire) -> None:
        self.wire = wire
        self.say = wire.say
        self.rank = int(environ["RANK"])
        self.wants_hash = False
        self.wants_samples = False
        self.wants_rate = False
        self.rate: float | None = None  # the learning rate of the step that is reported next
        # Digests of parameters, where no optimizer counts: those that this process began with, and
        # those that the step left that is reported next.
        self.began_with: str | None = None
        self.left: str | None = None
        self.reads_steps = False  # off what the script prints
        self._environ = environ
        self._hold_limit_s = _HOLD_LIMIT_S
        self._holds: list[int] = []
        self.steps = StepCount()
        self._resumed: int | None = None  # as was said last
        self._told_done = ""
        self._last_at = 0.0
        self._orders: list[list[str]] = []  # several faults may each have given one since a step
        self.order_by = ""
        self._ending: SystemExit | Exception | None = None
        self._drawn: dict[tuple[str, int | None, Epoch], list[Sequence[int]]] = {}
        self.on_step: Callable[[], None] = lambda: None
        self.on_finish: Callable[[], None] = lambda: None

    @staticmethod
    def load(name: str) -> ModuleType:
        """Load a part of the probe that few workers need; our folder is on the path no more."""
        module = sys.modules.get(name)
        if module is None:
            from importlib.util import module_from_spec, spec_from_file_location

            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
            spec = spec_from_file_location(name, path)
            assert spec is not None, "a path to a Python file has a specification"
            assert spec.loader is not None, "and a loader"
            module = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(module)
        return module

    def say_hello(self) -> bool:
        """Say hello and wait for the answer; False where the harness says we are no worker."""
        environ = self._environ
        numbers = {
            "rank": "RANK",
            "local_rank": "LOCAL_RANK",
            "group_rank": "GROUP_RANK",
            "world_size": "WORLD_SIZE",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "group_world_size": "GROUP_WORLD_SIZE",
            "restart_count": "TORCHELASTIC_RESTART_COUNT",
            "max_restarts": "TORCHELASTIC_MAX_RESTARTS",
            "master_port": "MASTER_PORT",
            "round": "PYTEST_ELASTIC_ROUND",
        }
        texts = {
            "master_addr": environ["MASTER_ADDR"],
            "run_id": environ.get("TORCHELASTIC_RUN_ID", ""),
            "node": environ.get("ELASTIC_NODE") or os.uname().nodename,
        }
        fields = [f'"{key}":{_integer(environ.get(name))}' for key, name in numbers.items()]
        fields += [f'"{key}":{quoted(text)}' for key, text in texts.items()]
        fields.append(f'"argv":[{",".join(map(quoted, getattr(sys, "orig_argv", ())))}]')
        self._last_at = now()
        self.say("worker_hello", ",".join(fields), self._last_at)
        deadline = self._last_at + HELLO_LIMIT_S
        while True:
            for words in self.wire.read():
                if words[0] == "bystander":
                    self.wire.close()
                    return False
                self.obey(words)
                if words[0] == "welcome":
                    return True
            if not self.wire.wait(deadline):
                return self.wire.is_open

    def finish(self) -> None:
        """Say goodbye when the interpreter goes down, and see to it that it is heard."""
        if not self.wire.is_open:
            return
        self.on_finish()
        if self._ending is not None and _is_uncaught(self._ending):
            self.acted(_name_of(self._ending), "ended", "")
        self.say("worker_finished", f'"dropped":{self.wire.dropped}', now())
        self.wire.flush(_FLUSH_LIMIT_S)

    # --- steps and holds -----------------------------------------------------------------------

    def obey(self, words: list[str]) -> bool:
        """Do what one line says; True when it releases a hold."""
        match words:
            case ["welcome", *settings]:
                given = dict(setting.split("=", 1) for setting in settings if "=" in setting)
                self.wants_hash = given.get("hash") == "1"
                self.wants_samples = given.get("samples") == "1"
                self.wants_rate = given.get("rate") == "1"
                self._hold_limit_s = float(given.get("hold_s", _HOLD_LIMIT_S))
            case ["hold", step]:
                if int(step) not in self._holds:
                    self._holds.append(int(step))
            case ["unhold", step]:
                self._holds = [each for each in self._holds if each != int(step)]
            case ["enter"]:
                # A file system was mounted over it: relative names would go past that.
                try:  # noqa: SIM105 (contextlib costs more at start-up than this file)
                    os.chdir(os.getcwd())
                except FileNotFoundError:
                    pass  # the script has removed it
            case ["steps_done", number]:
                self._told_done = number
            case ["release"]:
                return True
            case ["exit", _, _] | ["raise", _, _, _] | ["act", _, _, _]:
                self._orders.append(words)
                return True
            case _:
                pass
        return False

    def script_resumed(self, step: int) -> None:
        """Take the script's own word for how many steps were done before this process."""
        if self.wire.is_open:
            self.steps.on_start(step)
            self._say_resumed()

    def script_stepped(self, step: int, source: str = "script") -> None:
        """Take the script's own word for how many steps are done; it wins over what we deduce."""
        if not self.wire.is_open:
            return
        if self.steps.on_report(step):
            self._stepped(source)
        else:
            self._say_resumed()

    def follow_output(self, pattern: str) -> None:
        """Take what the script prints through Python for its word, where a line matches."""
        import re

        self.reads_steps = True
        regex = re.compile(pattern)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                self._follow(stream, regex)

    def _follow(self, stream: TextIO, regex: Pattern[str]) -> None:
        write, rest = stream.write, ""

        def watched(text: str) -> int:
            nonlocal rest
            written = write(text)
            *lines, rest = (rest + text).split("\n")
            rest = rest[-_MAX_LINE:]
            for line in lines:
                found = regex.search(line)
                if found is not None and found[1].isdecimal():
                    self.script_stepped(int(found[1]), "log")
            return written

        stream.write = watched  # type: ignore[method-assign]

    def optimizer_stepped(self, step: int | None, source: str) -> None:
        """Note a step of the primary optimizer, unless the script counts for itself."""
        if self.wire.is_open and self.steps.on_optimizer(step):
            self._stepped(source)

    def ask_steps_done(self, parameters: str, done: int | None) -> int | None:
        """Ask the harness after how many steps parameters were like these; None: it cannot know.

        `done` is how many there are as this process counts; None: it has made no step.
        """
        deadline = now() + HELLO_LIMIT_S
        counted = "null" if done is None else str(done)
        self.say("step_begins", f'"parameters":{quoted(parameters)},"done":{counted}', now())
        self._told_done = ""
        while not self._told_done and self.wire.wait(deadline):
            for words in self.wire.read():
                self.obey(words)
        return int(self._told_done) if self._told_done.isdecimal() else None

    def _say_resumed(self) -> None:
        if self.steps.resumed != self._resumed:
            self._resumed = self.steps.resumed
            number = "null" if self._resumed is None else str(self._resumed)
            began_with = "" if self.steps.is_reported else _parameters(self.began_with)
            self.say("resume_observed", f'"step":{number}{began_with}', now())

    def _stepped(self, source: str) -> None:
        count, step = self.steps.count, self.steps.step
        if self._ending is not None:
            self.acted(_name_of(self._ending), "refused", "the script caught it, and went on")
            self._ending = None
        self.on_step()
        at = now()
        self._say_resumed()
        number = "null" if step is None else str(step)
        place = f'"count":{count},"step":{number}'
        if self._drawn:
            self._say_drawn(place, at)
        rate = "" if self.rate is None else f',"learning_rate":{self.rate!r}'
        source = f'"step_source":"{source}","began_at":{self._last_at:.6f}'
        left, self.left = _parameters(self.left), None
        self.say("step_completed", f"{place},{source}{rate}{left}", at)
        for words in self.wire.read():
            self.obey(words)
        if self._holds and not self._orders:
            self._hold(count if step is None else step)
        self._last_at = now()
        while self._orders:
            self._do(self._orders.pop(0))

    def _hold(self, step: int) -> None:
        """Wait here while the harness wants this step held. Late orders hold the next step."""
        due = [each for each in self._holds if each <= step]
        if not due:
            return
        self._holds = [each for each in self._holds if each > step]
        self.say("rank_held", f'"step":{step}', now())
        deadline = now() + self._hold_limit_s
        is_released = False
        while not is_released:
            for words in self.wire.read():
                is_released |= self.obey(words)
            if not is_released and not self.wire.wait(deadline):
                break
        self.say("rank_released", f'"step":{step}', now())

    def _do(self, order: list[str]) -> None:
        """Do what the harness has ordered, here, between two steps of the script."""
        from urllib.parse import unquote

        self.order_by = unquote(order[-1][1:])
        match order:
            case ["exit", code, _]:
                self._end_by(SystemExit(int(code)))
            case ["raise", name, message, _]:
                import builtins

                error = getattr(builtins, name, RuntimeError)
                is_error = isinstance(error, type) and issubclass(error, Exception)
                self._end_by((error if is_error else RuntimeError)(unquote(message[1:])))
            case ["act", name, argument, _]:
                self.load("elastic_probe_acts").perform(self, name, argument)
            case _:
                pass

    def _end_by(self, error: SystemExit | Exception) -> None:
        self.acted(_name_of(error), "began", "")
        self._ending = error
        raise error

    def acted(self, act: str, phase: str, detail: str, by: str | None = None) -> None:
        """Say how far an order is; it has left when this returns, for the end may come then."""
        self.say(
            "acted",
            f'"act":{quoted(act)},"phase":{quoted(phase)},"detail":{quoted(detail)},'
            f'"by":{quoted(self.order_by if by is None else by)}',
            now(),
        )
        self.wire.flush(_FLUSH_LIMIT_S)

    # --- samples -------------------------------------------------------------------------------

    def drew(self, loader: str, size: int | None, epoch: Epoch, batch: Sequence[int]) -> None:
        """Note the indices of one batch that the script was given."""
        if self.wants_samples and self.wire.is_open:
            self._drawn.setdefault((loader, size, epoch), []).append(batch)

    def forget_drawn(self, loader: str) -> None:
        """Forget the batches of a loader that no step has used yet."""
        for key in [key for key in self._drawn if key[0] == loader]:
            del self._drawn[key]

    def did_not_see(self, loader: str, why: str) -> None:
        """Note that the samples of a loader cannot be seen."""
        self.say("samples_unseen", f'"loader":{quoted(loader)},"reason":{quoted(why)}', now())

    def _say_drawn(self, place: str, at: float) -> None:
        drawn, self._drawn = self._drawn, {}
        for (loader, size, (epoch, source)), batches in drawn.items():
            lists = ",".join(f"[{','.join(map(str, batch))}]" for batch in batches)
            size_text = "null" if size is None else str(size)
            epoch_text = "null" if epoch is None else str(epoch)
            self.say(
                "samples_drawn",
                f'{place},"loader":{quoted(loader)},"size":{size_text},'
                f'"epoch":{epoch_text},"epoch_source":"{source}","batches":[{lists}]',
                at,
            )
