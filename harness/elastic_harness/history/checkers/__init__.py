"""The checkers: safety and conduct (mostly on by default), liveness, training."""

from elastic_harness.history.checkers.library import (
    STANDARD,
    bind,
    default_checks,
    standard_checkers,
)
from elastic_harness.history.checkers.registry import (
    Check,
    Checker,
    Judgement,
    NoParameters,
    Registry,
    checker,
    judge,
    overall,
)

__all__ = [
    "STANDARD",
    "Check",
    "Checker",
    "Judgement",
    "NoParameters",
    "Registry",
    "bind",
    "checker",
    "default_checks",
    "judge",
    "overall",
    "standard_checkers",
]
