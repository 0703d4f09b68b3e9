"""What is wrong on purpose runs where it is named, and not with the other examples."""

from __future__ import annotations

collect_ignore = ["broken"]
