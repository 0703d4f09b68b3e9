"""The checkers: safety and conduct (mostly on by default), liveness, training."""

from elastic_harness.history.checkers.library import (
    STANDARD,
    bind,
    standard_checkers,
)
from elastic_harness.history.checkers.registry import (
    Check,
    Checker,
    NoParameters,
    Parameters,
    Registry,
    checker,
)

__all__ = [
    "STANDARD",
    "Check",
    "Checker",
    "NoParameters",
    "Parameters",
    "Registry",
    "bind",
    "checker",
    "standard_checkers",
]
