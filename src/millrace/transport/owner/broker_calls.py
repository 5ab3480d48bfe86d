"""Every call to a broker as it travels, derived from the contract `Broker`. Pure.

The contract's signatures say what a call takes and answers; its marks say whether the call writes
and whether it may be repeated. Nothing of that is written down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Signature, signature
from typing import Any, Final, get_type_hints

import msgspec
import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.journal.call_rules import CALL_RULES, CallRule
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.values import Fetched, SegmentFile
from millrace.transport.flight import arrow_envelope
from millrace.transport.owner.fetched_rows import ManyFetched, OneFetched
from millrace.wakeup import WakeUp

_FETCHED: Final[Mapping[object, type[OneFetched | ManyFetched]]] = {
    Fetched: OneFetched,
    ManyRows: ManyFetched,
}
"""Answers with rows have a form of their own on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCall:
    """One call of the contract."""

    name: str
    rule: CallRule
    signature: Signature
    takes: type[msgspec.Struct]
    """Its arguments, without those that stay in the process."""
    answers: Any
    """The type of its answer."""

    def arguments(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, with the defaults of the contract."""
        bound = self.signature.bind(*args, **named)
        bound.apply_defaults()
        return bound.arguments

    def encode_request(self, arguments: Mapping[str, Any]) -> bytes:
        """Write the arguments of a call."""
        return arrow_envelope.encode(
            {name: arguments[name] for name in self.takes.__struct_fields__}
        )

    def decode_request(self, data: pa.Buffer) -> dict[str, Any]:
        """Read the arguments of a call; refuse bytes that are none."""
        given = arrow_envelope.decode(data, self.takes, f"a call of {self.name}")
        return msgspec.structs.asdict(given)

    def encode_answer(self, answer: Any) -> bytes:  # noqa: ANN401 - of the type of this call
        """Write the answer of a broker."""
        form = _FETCHED.get(self.answers)
        return arrow_envelope.encode(answer if form is None else form.of(answer))

    def decode_answer(self, data: pa.Buffer) -> Any:  # noqa: ANN401 - of the type of this call
        """Read an answer; raise the error that was sent in its place."""
        form = _FETCHED.get(self.answers)
        if form is None:
            return arrow_envelope.decode_answer(data, self.answers)
        return arrow_envelope.decode_answer(data, form).fetched()


def _derived(name: str, rule: CallRule) -> BrokerCall:
    method = getattr(Broker, name)
    hints = get_type_hints(method, localns={"WakeUp": WakeUp}, include_extras=True)
    answers = hints.pop("return")
    sent = [(key, hint) for key, hint in hints.items() if hint != WakeUp | None]
    return BrokerCall(
        name=name,
        rule=rule,
        signature=signature(partial(method, None)),
        takes=msgspec.defstruct(name, sent, kw_only=True, forbid_unknown_fields=True),
        answers=answers,
    )


CALLS: Final[Mapping[str, BrokerCall]] = {
    name: _derived(name, rule) for name, rule in CALL_RULES.items()
}
"""By name. `transaction` is made of `publish`, `store_file` is a stream, `close` goes nowhere."""


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that is about to be sent."""

    file: SegmentFile
    checksum: str
    """XXH3-64 of all of its bytes."""
