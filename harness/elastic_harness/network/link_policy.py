"""What can be wrong with a link, as one value: a policy.

Pure. What a link does with packets under the policies of several faults is the business of
`link_model`.
"""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass

from pytest_elastic.errors import UsageError

__all__ = [
    "HEALTHY",
    "MAX_DELAY_S",
    "STRENGTH",
    "BurstLoss",
    "Distribution",
    "Flap",
    "LinkMode",
    "LinkPolicy",
]

# The longest delay that a policy may ask for, which is longer than any test.
MAX_DELAY_S = 3600.0
_PARETO_SHAPE = 3.0
# A one-sided distribution has no end; beyond this many scales (of Pareto one in 9 000) it does.
_MAX_SCALES = 20.0


def _require_chance(what: str, chance: float) -> None:
    if not 0.0 <= chance <= 1.0:
        raise UsageError(f"cannot give a link a {what} {chance}: 0 to 1 is expected")


class LinkMode(enum.Enum):
    """What happens to packets of a link that is down."""

    DROP = "drop"
    REJECT = "reject"
    HOLD = "hold"


class Distribution(enum.Enum):
    """How jitter spreads around (or, for the last two, on top of) the latency.

    uniform: at most the jitter more or less. normal: the jitter is the standard deviation; what
    would arrive before it was sent arrives at once. pareto (shape 3) and exponential: only later,
    with the jitter as scale, so that most packets are a little late and few are very late.
    """

    UNIFORM = "uniform"
    NORMAL = "normal"
    PARETO = "pareto"
    EXPONENTIAL = "exponential"

    @property
    def is_one_sided(self) -> bool:
        """Tell whether packets are only ever later than the latency."""
        return self in {Distribution.PARETO, Distribution.EXPONENTIAL}

    def draw(self, chance: random.Random, scale: float) -> float:
        """Draw by how many seconds a packet is later than the latency, or (negative) earlier."""
        match self:
            case Distribution.UNIFORM:
                return chance.uniform(-scale, scale)
            case Distribution.NORMAL:
                return chance.gauss(0.0, scale)
            case Distribution.PARETO:
                scales = chance.paretovariate(_PARETO_SHAPE) - 1.0
            case Distribution.EXPONENTIAL:
                scales = chance.expovariate(1.0)
        return scale * min(scales, _MAX_SCALES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstLoss:
    """Loss that comes in bursts: the model of Gilbert and Elliott, a step for each unit.

    From the good state a link enters the bad one with chance `enter`, and leaves it with chance
    `leave`; in the bad state it loses `loss` of its units (in the good one, what the policy's own
    `loss` says). A burst is 1 / `leave` units long on average.
    """

    enter: float
    leave: float
    loss: float = 1.0

    def __post_init__(self) -> None:
        for name in ("enter", "leave", "loss"):
            _require_chance(f"burst loss whose {name} is", getattr(self, name))
        if self.leave == 0.0:
            raise UsageError(
                "cannot give a link burst loss whose bursts never end (leave is 0):"
                " use loss for that"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flap:
    """A link that goes down and up again, `down_s` and `up_s` seconds at a time, down first."""

    down_s: float
    up_s: float
    mode: LinkMode = LinkMode.DROP

    def __post_init__(self) -> None:
        for name in ("down_s", "up_s"):
            seconds = getattr(self, name)
            # Below a millisecond nothing that is measured in the kernel's ticks would notice.
            if not 0.001 <= seconds <= MAX_DELAY_S:
                raise UsageError(
                    f"cannot let a link flap with {name} of {seconds}:"
                    f" 0.001 to {MAX_DELAY_S:g} seconds are expected"
                )

    def up_at(self, began: float, now: float) -> float | None:
        """Return when it will be up again, None if it is up `now`."""
        since = (now - began) % (self.down_s + self.up_s)
        return now + self.down_s - since if since < self.down_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPolicy:
    """How a link treats packets. `loss`, `duplicate`, `reorder`, `corrupt` are chances from 0 to 1.

    Loss and corruption are drawn for each unit of at most 1 500 bytes. A corrupted unit arrives
    with a wrong checksum, and the receiver's kernel discards it. `resets` counts orders to reset
    the connections that are there.
    """

    up: bool = True
    mode: LinkMode = LinkMode.DROP
    latency_s: float = 0.0
    jitter_s: float = 0.0
    distribution: Distribution = Distribution.UNIFORM
    loss: float = 0.0
    bursts: tuple[BurstLoss, ...] = ()
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    rate_bytes_per_s: float | None = None
    flaps: tuple[Flap, ...] = ()
    resets: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            _require_chance(f"{name} of", getattr(self, name))
        for name in ("latency_s", "jitter_s"):
            seconds = getattr(self, name)
            if not 0.0 <= seconds <= MAX_DELAY_S:
                raise UsageError(
                    f"cannot give a link a {name} of {seconds}: 0 to 3600 seconds is expected"
                )
        if self.jitter_s > self.latency_s and not self.distribution.is_one_sided:
            raise UsageError(
                f"cannot give a link a jitter of {self.jitter_s} s around a latency of"
                f" {self.latency_s} s: packets would arrive before they were sent"
            )
        rate = self.rate_bytes_per_s
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(
                f"cannot give a link a rate of {rate} bytes per second: more than 0 is expected"
            )

    @property
    def is_transparent(self) -> bool:
        """Tell whether packets simply pass."""
        return self == HEALTHY

    @property
    def loses(self) -> bool:
        """Tell whether units may be lost or corrupted by chance."""
        return bool(self.loss or self.bursts or self.corrupt)


HEALTHY = LinkPolicy()

# What a packet meets first on a link with several faults: a cut that answers, one that swallows,
# one that only delays.
STRENGTH = (LinkMode.REJECT, LinkMode.DROP, LinkMode.HOLD)
