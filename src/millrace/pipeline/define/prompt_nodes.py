"""What a prompt or embed step asks, made of the user's arguments and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import pyarrow as pa

from millrace.errors import UserError
from millrace.llm.models import Model
from millrace.llm.output_schema import columns_of, is_pydantic, is_strict, schema_of
from millrace.llm.prompts import Prompt
from millrace.llm.templates import template_of
from millrace.names import shown
from millrace.pipeline.core.job_model import Calling
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.user_functions import recognised
from millrace.pipeline.large.large_values import loaded_schema
from millrace.pipeline.prompts.batch_asking import BatchAsking, Mode
from millrace.pipeline.prompts.embed_call import VECTOR, EmbedCall, Embedding
from millrace.pipeline.prompts.prompt_call import PromptCall
from millrace.sql.name_checks import check_columns

Cache = Literal["workspace"]


def check_model(call: str, llm: object) -> None:
    """Refuse what is no model."""
    if not isinstance(llm, Model):
        raise UserError(
            f"{call} of {shown(llm)}\n  to fix: give a model: mr.llm.openai('gpt-5-mini')"
        )


def prompt_over(
    call: str,
    schema: pa.Schema,
    llm: Model,
    *,
    template: str,
    system: str,
    output: object,
    images: str | Sequence[str],
    keep: Sequence[str] | None,
    column: str,
) -> Prompt:
    """The questions of a step over rows of these columns."""
    rows = loaded_schema(schema)
    pictures = (images,) if isinstance(images, str) else tuple(images)
    _check_images(call, rows, pictures)
    plain = [f.name for f in rows if f.type not in (pa.binary(), pa.large_binary())]
    answer = None if output is None else schema_of(call, output)
    return Prompt(
        model=llm,
        template=template_of(call, "template", template, plain),
        system=_text(call, "system", system),
        schema=answer,
        is_strict=answer is not None and is_strict(answer),
        validator=output if isinstance(output, type) and is_pydantic(output) else None,
        images=pictures,
        keep=_kept(call, schema, keep, pictures),
        column=_text(call, "column", column),
    )


def prompt_calling(
    call: str, prompt: Prompt, *, cache: Cache | None, mode: Mode, version: str | None
) -> Calling:
    """How a prompt step is called."""
    if mode not in get_args(Mode):
        raise UserError(
            f"{call}: mode is {mode!r}\n  to fix: use {' or '.join(map(repr, get_args(Mode)))}"
        )
    if cache is not None and mode != "calls":
        raise UserError(
            f"{call}: cache with mode={mode!r}\n  found: batches are not looked up in the cache\n"
            "  to fix: leave one of them out"
        )
    identity, why = _identity(prompt, version)
    return Calling(
        function=partial(PromptCall, prompt, caches=_caches(call, cache)),
        name=prompt.model.model,
        rows="row",
        makes=True,
        is_async=True,
        takes_context=True,
        identity=identity,
        unrecognised=why,
        at_most_one=True,
        setting=repr((prompt.model, cache)),
        batches=BatchAsking(prompt=prompt, mode=mode),
    )


def embedding_over(
    call: str,
    schema: pa.Schema,
    llm: Model,
    *,
    column: str,
    output: str,
    keep: Sequence[str] | None,
) -> Embedding:
    """What an embed step asks for rows of these columns."""
    if llm.provider != "openai":
        raise UserError(
            f"{call}: {llm.provider} has no embeddings\n  to fix: give mr.llm.openai(...)"
        )
    check_columns(schema, [column], call)
    if schema.field(column).type not in (pa.string(), pa.large_string()):
        raise UserError(
            f"{call}: column {column!r} is {schema.field(column).type}\n"
            "  to fix: give a column of text"
        )
    kept = _kept(call, schema, keep, ())
    return Embedding(model=llm, column=column, output=_text(call, "output", output), keep=kept)


def embed_calling(call: str, embedding: Embedding, *, cache: Cache | None) -> Calling:
    """How an embed step is called."""
    parts = [embedding.model.identity(), embedding.column, embedding.output, embedding.keep]
    text = json.dumps(parts, sort_keys=True)
    return Calling(
        function=partial(EmbedCall, embedding, caches=_caches(call, cache)),
        name=embedding.model.model,
        rows="batch",
        makes=True,
        is_async=True,
        takes_context=True,
        setting=repr((embedding.model, cache)),
        identity=f"embed {hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}",
    )


def columns_with(call: str, rows: pa.Schema, asked: Prompt | Embedding) -> pa.Schema:
    """The columns of a step: those that are kept, and those of the answer."""
    if isinstance(asked, Embedding):
        made = pa.schema([(asked.output, VECTOR)])
    elif asked.schema is None:
        made = pa.schema([(asked.column, pa.string())])
    else:
        made = columns_of(call, dict(asked.schema))
    twice = [name for name in made.names if name in asked.keep]
    if twice:
        raise UserError(
            f"{call}: the answer has {twice[0]!r}, and the row has a column of that name\n"
            "  to fix: leave it out with keep=[...], or name the answer's otherwise"
        )
    return checked(call, pa.schema([*(rows.field(name) for name in asked.keep), *made]))


def _caches(call: str, cache: str | None) -> bool:
    if cache not in (None, "workspace"):
        raise UserError(f"{call}: cache is {cache!r}\n  to fix: use 'workspace', or leave it out")
    return cache is not None


def _text(call: str, name: str, value: object) -> str:
    if not isinstance(value, str) or (not value and name != "system"):
        raise UserError(f"{call}: {name} is {value!r}\n  to fix: give a text")
    return value


def _check_images(call: str, schema: pa.Schema, images: Sequence[str]) -> None:
    check_columns(schema, images, call)
    for name in images:
        kind = schema.field(name).type
        if kind not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
            raise UserError(
                f"{call}: images in column {name!r} of {kind}\n"
                "  to fix: give a column of bytes, or of URLs"
            )


def _kept(
    call: str, schema: pa.Schema, keep: Sequence[str] | None, images: Sequence[str]
) -> tuple[str, ...]:
    if keep is None:
        return tuple(name for name in schema.names if name not in images)
    if isinstance(keep, str):
        raise UserError(f"{call}: keep is {keep!r}\n  to fix: give a list of columns")
    check_columns(schema, keep, call)
    return tuple(keep)


def _identity(prompt: Prompt, version: str | None) -> tuple[str, str]:
    """The identity of a prompt, or why it has none: a model of pydantic may run code of its own."""
    named = prompt.identity() + (f" version {version}" if version is not None else "")
    validator = prompt.validator
    decorators = getattr(validator, "__pydantic_decorators__", None)
    if decorators is None or version is not None:
        return named, ""
    for kind in ("validators", "field_validators", "root_validators", "model_validators"):
        for name, found in getattr(decorators, kind, {}).items():
            code, why = recognised(getattr(found.func, "__func__", found.func), None)
            if why:
                return "", f"{name} of {getattr(validator, '__name__', '')}: {why}"
            named += f" {name} {code}"
    return named, ""
