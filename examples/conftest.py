"""What is wrong on purpose, and what needs Ray, runs where it is named, and not with the others."""

from __future__ import annotations

collect_ignore = ["broken", "ray_train"]
