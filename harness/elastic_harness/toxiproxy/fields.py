"""What the bodies of requests say of proxies and toxics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_harness.toxiproxy.go_json import Reading
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES

__all__ = ["ProxyFields", "ToxicFields"]


@dataclass(slots=True)
class ProxyFields:
    """What a body says of a proxy; None where it says nothing."""

    name: str | None = None
    listen: str | None = None
    upstream: str | None = None
    enabled: bool | None = None

    def read(self, value: object, reading: Reading) -> None:
        """Take over what a decoded body says."""

        def name(item: object) -> None:
            self.name = reading.text(item, "Proxy.name") or self.name

        def listen(item: object) -> None:
            text = reading.text(item, "Proxy.listen")
            self.listen = self.listen if text is None else text

        def upstream(item: object) -> None:
            text = reading.text(item, "Proxy.upstream")
            self.upstream = self.upstream if text is None else text

        def enabled(item: object) -> None:
            truth = reading.truth(item, "Proxy.enabled")
            self.enabled = self.enabled if truth is None else truth

        readers = {"name": name, "listen": listen, "upstream": upstream, "enabled": enabled}
        reading.fields(value, "toxiproxy.Proxy", readers)


@dataclass(slots=True)
class ToxicFields:
    """What a body says of a toxic; `attributes` as they were written, for their type to read."""

    name: str = ""
    type: str = ""
    stream: str = "downstream"
    toxicity: float | None = None
    attributes: list[object] = field(default_factory=list)

    def read(self, value: object, reading: Reading) -> None:
        """Take over what a decoded body says."""

        def name(item: object) -> None:
            self.name = reading.text(item, "ToxicWrapper.name") or self.name

        def kind(item: object) -> None:
            self.type = reading.text(item, "ToxicWrapper.type") or self.type

        def stream(item: object) -> None:
            text = reading.text(item, "ToxicWrapper.stream")
            self.stream = self.stream if text is None else text

        def toxicity(item: object) -> None:
            number = reading.float32(item, "ToxicWrapper.toxicity")
            self.toxicity = self.toxicity if number is None else number

        readers = {
            "name": name,
            "type": kind,
            "stream": stream,
            "toxicity": toxicity,
            "attributes": self.attributes.append,
        }
        reading.fields(value, "toxics.ToxicWrapper", readers)

    def read_attributes(self, kind: str, reading: Reading) -> dict[str, int]:
        """Return the attributes that this type of toxic has; the last of several counts."""
        found: dict[str, int] = {}

        def reader_of(attribute: str) -> Callable[[object], None]:
            def read(item: object) -> None:
                number = reading.integer(item, f"toxic {kind}.{attribute}")
                if number is not None:
                    found[attribute] = number

            return read

        readers = {name: reader_of(name) for name in TOXIC_TYPES[kind].attributes}
        for value in self.attributes:
            reading.fields(value, f"toxic {kind}", readers)
        return found
