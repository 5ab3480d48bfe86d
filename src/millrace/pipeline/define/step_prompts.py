"""Steps that ask a model, while defining a job. `Step` is one of these.

Invariant: a template, an output and its columns are checked by the call itself, before anything
runs. Everything that decides an answer is in the identity of the step; where its server is, and
how fast it is asked, is not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import pyarrow as pa

from millrace.durations import Duration
from millrace.llm.models import Model
from millrace.llm.provider_calls import check_provider
from millrace.pipeline.core import job_model
from millrace.pipeline.core.job_model import OnDoubt, OnError
from millrace.pipeline.define.prompt_nodes import (
    Cache,
    check_model,
    columns_with,
    embed_calling,
    embedding_over,
    prompt_calling,
    prompt_over,
)
from millrace.pipeline.define.step_checks import STEP_OPTIONS
from millrace.pipeline.define.step_options import options_of
from millrace.pipeline.define.step_sinks import StepSinks
from millrace.pipeline.paid.limits_and_budget import Budget, Limits
from millrace.pipeline.paid.retry_policy import ErrorClasses
from millrace.pipeline.prompts.batch_asking import Mode

PROMPT_CONCURRENCY: Final = 16
"""Calls at once of a worker, unless the step says otherwise."""

EMBED_ROWS: Final = 64
"""Texts of one request for embeddings, unless the step says otherwise."""


FINAL: Final = ("QuestionRefused", "AnswerUnusable")
"""Errors of questions after which asking again would cost and end alike."""


class StepPrompts(StepSinks):
    """Asks models for the rows of a source or a step of a job."""

    __slots__ = ()

    def prompt(  # noqa: PLR0913 - each option has a name
        self,
        name: str,
        llm: Model,
        *,
        template: str,
        system: str = "",
        output: object = None,
        images: str | Sequence[str] = (),
        keep: Sequence[str] | None = None,
        column: str = "answer",
        cache: Cache | None = None,
        mode: Mode = "calls",
        workers: int | None = None,
        partitions: int | None = None,
        batch_rows: int | None = None,
        concurrency: int = PROMPT_CONCURRENCY,
        timeout: Duration | None = None,
        retries: int = 3,
        retry_on: ErrorClasses = (),
        give_up_on: ErrorClasses = (),
        on_error: OnError = "dead_letter",
        on_doubt: OnDoubt = "retry",
        rate: float | None = None,
        max_calls: int | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        ordered: bool = True,
        version: str | None = None,
    ) -> Self:
        """Rows with the answers of a model: one question for each row, each paid for once.

        Args:
            name: of the step, unique in the job. Progress is kept under it.
            llm: the model, from `mr.llm.openai` or `mr.llm.anthropic`.
            template: the question; `{title}` is the value of a column, `{{` a brace.
            system: what the model is told before each question, as it is.
            output: what an answer looks like: a dataclass, a pydantic model or a JSON Schema of an
                object. Its fields are columns. Without it the answer is a text.
            images: columns with images, as bytes or URLs.
            keep: columns of the row that the new row has too; by default all but images.
            column: of an answer that is a text.
            cache: "workspace" asks no question that any job of the workspace has an answer to.
            mode: "batch" asks in batches of the provider, answered within a day at half the price;
                "auto" does so for many rows.
            workers: most workers at once.
            partitions: over how many journals its output is spread.
            batch_rows: most rows that are called for before the next publish.
            concurrency: most questions of a worker under way at once.
            timeout: how long a row may take, a repair included.
            retries: how often a call that failed is made again.
            retry_on: only errors of these classes are tried again; all that may help by default.
            give_up_on: errors of these classes are not.
            on_error: what then: "dead_letter" keeps the row and the paid answer, "skip" leaves the
                row out, "fail" ends the job.
            on_doubt: what to do about calls that a worker that died may have made.
            rate: most calls per second, over all workers.
            max_calls: a budget over all runs; the job stops when it is used up.
            limits: calls and tokens per minute, over all workers; the provider's own count as well.
            budget: dollars, calls or tokens over all runs; the job stops when it is used up.
            ordered: whether answers are published in the order of their rows.
            version: names what a pydantic model checks, where its code cannot be identified.

        Example:
            >>> from dataclasses import dataclass
            >>> from typing import Literal
            >>> @dataclass
            ... class Review:
            ...     label: Literal["good", "bad"]
            ...     score: float
            >>> llm = mr.llm.openai("gpt-4o-mini", temperature=0)
            >>> judged = texts.prompt("judge", llm, template="Judge {path}.", output=Review)
            >>> judged.columns
            ['path', 'size', 'modified', 'label', 'score']
        """
        given = {option: value for option, value in locals().items() if option in STEP_OPTIONS}
        call = f"prompt({name!r})"
        check_model(call, llm)
        prompt = prompt_over(
            call,
            self.schema,
            llm,
            template=template,
            system=system,
            output=output,
            images=images,
            keep=keep,
            column=column,
        )
        calling = prompt_calling(call, prompt, cache=cache, mode=mode, version=version)
        return self._add_call(call, name, columns_with(call, self.schema, prompt), calling, given)

    def embed(  # noqa: PLR0913 - each option has a name
        self,
        name: str,
        llm: Model,
        *,
        column: str,
        output: str = "embedding",
        keep: Sequence[str] | None = None,
        cache: Cache | None = None,
        workers: int | None = None,
        partitions: int | None = None,
        batch_rows: int = EMBED_ROWS,
        timeout: Duration | None = None,
        retries: int = 3,
        retry_on: ErrorClasses = (),
        give_up_on: ErrorClasses = (),
        on_error: OnError = "fail",
        on_doubt: OnDoubt = "retry",
        rate: float | None = None,
        max_calls: int | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> Self:
        """Rows with the embedding of a text, asked for in batches.

        Args:
            name: of the step, unique in the job. Progress is kept under it.
            llm: the model, from `mr.llm.openai`.
            column: the text. A row without one, or with an empty one, gets no embedding.
            output: the column of the embedding, a list of 32-bit numbers.
            keep: columns of the row that the new row has too; by default all.
            cache: "workspace" asks for no text that any job of the workspace has a vector for.
            workers: most workers at once.
            partitions: over how many journals its output is spread.
            batch_rows: rows of one request.
            timeout: how long a request may take.
            retries: how often a request that failed is made again.
            retry_on: only errors of these classes are tried again; all that may help by default.
            give_up_on: errors of these classes are not.
            on_error: what then: "fail", "skip" its rows or put them into the "dead_letter" journal.
            on_doubt: what to do about requests that a worker that died may have made.
            rate: most requests per second, over all workers.
            max_calls: a budget over all runs; the job stops when it is used up.
            limits: requests and tokens per minute, over all workers.
            budget: dollars, requests or tokens over all runs; the job stops when it is used up.

        Example:
            >>> llm = mr.llm.openai("text-embedding-3-small")
            >>> texts.embed("vectors", llm, column="path").schema.field("embedding").type
            ListType(list<item: float>)
        """
        given = {option: value for option, value in locals().items() if option in STEP_OPTIONS}
        call = f"embed({name!r})"
        check_model(call, llm)
        embedding = embedding_over(call, self.schema, llm, column=column, output=output, keep=keep)
        calling = embed_calling(call, embedding, cache=cache)
        made = columns_with(call, self.schema, embedding)
        return self._add_call(call, name, made, calling, given)

    def _add_call(
        self,
        call: str,
        name: str,
        schema: pa.Schema,
        calling: job_model.Calling,
        given: Mapping[str, Any],
    ) -> Self:
        """Add the step; its calls are recorded, as those of each expensive step."""
        check_provider()
        options = options_of(call, {**given, "expensive": True})
        options = replace(options, give_up_on=(*FINAL, *options.give_up_on))
        return self._add(
            job_model.Map(
                name=self._graph.take_name(name, call),
                inputs=(self._node,),
                schema=schema,
                calling=calling,
                options=options,
            )
        )

    @abstractmethod
    def _add(self, node: job_model.Anything) -> Self:
        """Add a step to the job."""
