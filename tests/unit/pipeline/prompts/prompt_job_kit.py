"""A job that asks a stand-in model for numbers, over a broker in memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import Bench, fill, hop

from millrace.llm.models import Model
from millrace.llm.output_schema import columns_of, is_strict, schema_of
from millrace.llm.prompts import Prompt
from millrace.llm.templates import template_of
from millrace.pipeline.core.job_model import Calling, Map
from millrace.pipeline.define.step_options import options_of
from millrace.pipeline.define.step_prompts import FINAL
from millrace.pipeline.prompts.prompt_call import PromptCall


def prompt_step(llm: Model, output: type | None = None, **options: Any) -> Map:  # noqa: ANN401 - options
    """A step that asks for each number."""
    schema = None if output is None else schema_of("p", output)
    prompt = Prompt(
        model=llm,
        template=template_of("p", "template", "number {x}", ["x"]),
        keep=("x",),
        schema=schema,
        is_strict=schema is not None and is_strict(schema),
    )
    made = pa.schema([("answer", pa.string())]) if schema is None else columns_of("p", dict(schema))
    chosen = {"expensive": True, "on_error": "dead_letter", "concurrency": 4, "give_up_on": FINAL}
    return Map(
        name="ask",
        schema=pa.schema([("x", pa.int64()), *made]),
        calling=Calling(
            function=partial(PromptCall, prompt),
            name="m",
            rows="row",
            makes=True,
            is_async=True,
            takes_context=True,
            identity="1",
            setting=repr(llm),
        ),
        options=options_of("p", {**chosen, **options}),
    )


def asking_bench(folder: Path, step: Map, rows: int = 40) -> Bench:
    """A job of this step over numbers."""
    bench = Bench(folder, [hop(step)])
    fill(bench.broker, range(rows))
    return bench
