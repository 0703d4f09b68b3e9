"""Print the rules as Markdown, for `docs/architecture.md`: `python -m tests.house.tables`."""

from __future__ import annotations

import sys

from tests.house import rules

__all__ = ["BEGIN", "END", "as_markdown"]

# What lies between these two lines of a document is compared with `as_markdown`.
BEGIN = "<!-- tests.house.tables: begin -->"
END = "<!-- tests.house.tables: end -->"


def as_markdown() -> str:
    """Return the tables of rooms, pure modules and expensive imports."""
    rooms = ["| room | holds | may import | because |", "|---|---|---|---|"]
    for room in rules.ROOMS:
        holds = _code(room.holds)
        allowed = ", ".join(f"`{name}`" if "." in name else f"*{name}*" for name in room.may_import)
        rooms.append(
            f"| *{room.name}* | {holds} | {allowed or 'nothing of ours'} | {room.because} |"
        )
    pure = ["| pure: values in, values out | but not |", "|---|---|"]
    pure += [f"| `{item.holds}` | {_code(item.drivers)} |" for item in rules.PURE]
    costly = ["| package | imported only in |", "|---|---|"]
    costly += [f"| `{item.package}` | {_code(item.modules)} |" for item in rules.IMPORTERS]
    return "\n\n".join("\n".join(table) for table in (rooms, pure, costly))


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(f"{BEGIN}\n\n{as_markdown()}\n\n{END}\n")
