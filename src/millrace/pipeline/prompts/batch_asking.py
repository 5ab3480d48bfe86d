"""How a prompt step asks in batches, and what became of the questions of its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from millrace.llm.batch_calls import BatchReply
from millrace.llm.model_questions import Repair
from millrace.llm.models import Model
from millrace.llm.prompts import Prompt, Row, Unfit
from millrace.llm.wire_formats import answer_without_text, wire_of
from millrace.pipeline.batches.batch_machine import RowFate
from millrace.pipeline.paid.call_records import Held
from millrace.pipeline.paid.spend import NANO_USD, CallSpend
from millrace.pipeline.prompts.prompt_call import NO_ANSWER, call_spend

Mode = Literal["calls", "batch", "auto"]
AUTO_ROWS: Final = 1_000
"""With mode="auto", so many rows of a partition are asked for in a batch; fewer one by one."""
GUESSED_ROWS: Final = 50
"""So many questions are looked at for a guess of what one costs: the longest counts."""
LETTERS_OF_TOKEN: Final = 4
TOKENS_OUT_GUESSED: Final = 500
"""Tokens of an answer, unless the model's parameters limit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAsking:
    """The questions of a step and when they go into a batch."""

    prompt: Prompt
    mode: Mode = "calls"

    @property
    def makes_batches(self) -> bool:
        """Whether new batches are made; those of earlier runs count in any case."""
        return self.mode != "calls"

    @property
    def rows_min(self) -> int:
        """Fewer rows are asked for one by one."""
        return AUTO_ROWS if self.mode == "auto" else 1

    @property
    def server(self) -> str:
        """How the provider is reached, as JSON, to ask for the state of a batch."""
        model = self.prompt.model
        named = ("provider", "model", "base_url", "key_env")
        return json.dumps({name: getattr(model, name) for name in named})


def model_at(server: str) -> Model:
    """The model of a record of batches."""
    return Model(**json.loads(server))


@dataclass(slots=True)
class RowAnswers:
    """What the batches of some rows have come to, row by row."""

    prompt: Prompt
    rows: Sequence[Mapping[str, Any]]
    made: dict[int, Row] = field(default_factory=dict)
    unfit: dict[int, Unfit] = field(default_factory=dict)
    """The last answer of no use, or the last error."""
    repairs: dict[int, Repair] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    spent: dict[int, list[CallSpend]] = field(default_factory=dict)

    def add(self, index: int, reply: BatchReply) -> None:
        """What became of a row in one batch; batches come oldest first."""
        if index in self.made:
            return
        self.refused.discard(index)
        if reply.body is None:
            self.unfit[index] = Unfit("", reply.error, repairable=not reply.is_final)
            if reply.is_final:
                self.refused.add(index)
            return
        question = self.prompt.question(self.rows[index], self.repairs.get(index))
        wire, problem = wire_of(self.prompt.model), ""
        try:
            answer = wire.answer(reply.body, question)
        except NO_ANSWER as error:
            answer, problem = answer_without_text(wire, reply.body), repr(error)
        self.spent.setdefault(index, []).append(call_spend(self.prompt, answer, batch=True))
        if problem:
            self.unfit[index] = Unfit(str(reply.body), problem, repairable=False)
            self.refused.add(index)
            return
        made = self.prompt.answered(self.rows[index], answer)
        if not isinstance(made, Unfit):
            self.made[index] = made
            self.unfit.pop(index, None)
            return
        self.unfit[index] = made
        if not made.repairable or index in self.repairs:
            self.refused.add(index)
        else:
            self.repairs[index] = Repair(made.answer, made.complaint)

    def fates(self) -> dict[int, RowFate]:
        """What is known about each row that has a reply."""
        out = dict.fromkeys(self.unfit, RowFate.OPEN)
        out |= dict.fromkeys(self.refused, RowFate.REFUSED)
        return out | dict.fromkeys(self.made, RowFate.ANSWERED)

    def body(self, index: int) -> dict[str, Any]:
        """The body of the question for a row."""
        question = self.prompt.question(self.rows[index], self.repairs.get(index))
        return wire_of(self.prompt.model).question(self.prompt.model, question)

    def guess(self) -> Held:
        """What a question may cost, by its length, before any was answered."""
        some = range(min(len(self.rows), GUESSED_ROWS))
        hopeless = self.hopeless()
        sizes = [len(json.dumps(self.body(index))) for index in some if index not in hopeless]
        tokens_in = max(sizes, default=0) // LETTERS_OF_TOKEN
        model = self.prompt.model
        limits = ("max_completion_tokens", "max_tokens")
        given = [model.parameters[name] for name in limits if name in model.parameters]
        tokens_out = next((n for n in given if isinstance(n, int)), TOKENS_OUT_GUESSED)
        usd = 0.0
        if model.price is not None:
            usd = model.price.usd(tokens_in=tokens_in, tokens_out=tokens_out, batch=True)
        return Held(tokens=tokens_in + tokens_out, nano_usd=round(usd * NANO_USD))

    def hopeless(self) -> dict[int, Unfit]:
        """The rows that give no question, and why."""
        out = {}
        if self.prompt.images:
            for index, row in enumerate(self.rows):
                try:
                    self.prompt.question(row)
                except ValueError as error:
                    out[index] = Unfit("", str(error), repairable=False)
        return out
