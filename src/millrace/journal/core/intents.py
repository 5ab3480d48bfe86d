"""What a producer is about to commit, as a value that can be kept anywhere. Pure.

All ACKs of a transaction have one clock, and each names the other journals. Any process that has
the intents can write the missing ACKs, however far their producer came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.errors import FormatError
from millrace.journal.core.clocks import Clock, check_clock
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.row_format import PRODUCER_MAX, ProducerId
from millrace.journal.core.values import OpenIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Intents:
    """The ACKs of one transaction: whose, at which clock, in which journals.

    Example:
        >>> with ws.journals.producer("shop") as shop:
        ...     done = shop.append("payments", rows)
        ...     intents = shop.prepare()
        >>> list(intents.journals)
        ['payments']
    """

    producer: ProducerId
    clock: Clock
    journals: Mapping[str, JournalId]
    """Those that the transaction has rows in, by name."""

    def hints(self, journal: JournalId) -> list[JournalId]:
        """What the ACK in a journal names: all the others."""
        return sorted(id_ for id_ in self.journals.values() if id_ != journal)

    def ends(self, open_in: OpenIn) -> bool:
        """Whether it is this transaction that is open in a journal."""
        return open_in.id in self.journals.values() and open_in.highest <= self.clock

    def to_json(self) -> str:
        """As a text, to be stored.

        Example:
            >>> with ws.journals.producer() as shop:
            ...     done = shop.append("payments", rows)
            ...     shop.prepare().to_json()
            '{"clock": ..., "journals": {"payments": ...}, "producer": ...}'
        """
        document = {"producer": self.producer, "clock": self.clock, "journals": dict(self.journals)}
        return json.dumps(document, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Intents:
        """From the text that `to_json` gave.

        Example:
            >>> from millrace.journal.core.intents import Intents
            >>> kept = '{"clock": 32, "journals": {"payments": 2}, "producer": 7}'
            >>> Intents.from_json(kept).journals
            {'payments': 2}
        """
        try:
            document: dict[str, Any] = json.loads(text)
            producer, clock = _whole(document["producer"]), _whole(document["clock"])
            journals = {str(n): JournalId(_whole(i)) for n, i in document["journals"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"not the intents of a transaction: {text[:80]!r}\n"
                "  to fix: give what `prepare().to_json()` returned"
            ) from error
        if not 0 <= producer <= PRODUCER_MAX:
            raise FormatError(
                f"intents of producer {producer}, which does not fit 48 bits\n"
                "  to fix: give the intents as `prepare().to_json()` wrote them"
            )
        return cls(producer=ProducerId(producer), clock=check_clock(clock), journals=journals)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"not a whole number: {value!r}")
    return value
