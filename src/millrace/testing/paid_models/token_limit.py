"""The limits of a stand-in: requests and tokens per minute, in buckets that fill evenly. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class TokenLimit:
    """Refuses what is beyond its limits, and says how long to wait."""

    tpm: float = float("inf")
    """Tokens per minute."""
    rpm: float = float("inf")
    """Requests per minute."""
    burst_s: float = 1.0
    """How many seconds of its limits a bucket holds."""
    refused: int = 0
    taken_tokens: int = 0
    _at: float | None = None
    _filled: dict[str, float] = field(default_factory=dict)

    def take(self, now: float, tokens: int) -> float | None:
        """Take a request; None if it may pass, else how many seconds it has to wait."""
        wanted = {"tokens": (self.tpm, tokens), "requests": (self.rpm, 1)}
        passed_s = 0.0 if self._at is None else now - self._at
        self._at = now
        waits = []
        for name, (limit, count) in wanted.items():
            if limit == float("inf"):
                continue
            rate = limit / 60
            most = max(rate * self.burst_s, count)
            filled = min(most, self._filled.get(name, most) + passed_s * rate)
            self._filled[name] = filled
            if filled < count:
                waits.append((count - filled) / rate)
        if waits:
            self.refused += 1
            return max(waits)
        for name, (_, count) in wanted.items():
            if name in self._filled:
                self._filled[name] -= count
        self.taken_tokens += tokens
        return None

    def headers(self, limit_named: str, left_named: str) -> dict[str, str]:
        """The headers that say what is left, under a provider's names."""
        out = {}
        for name, limit in (("tokens", self.tpm), ("requests", self.rpm)):
            if limit != float("inf"):
                out[limit_named.format(name)] = str(int(limit))
                out[left_named.format(name)] = str(int(self._filled.get(name, limit)))
        return out
