"""Looks through SQL text that Spark runs: do equal inputs always give equal rows? Pure.

Invariant: a text that reads anything but its inputs, or calls a function whose value changes from
run to run, is never said to be recognisable. In doubt it is not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import sqlglot.errors
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from millrace.sql.functions.schema_texts import may_have_times
from millrace.sql.spark_dialect import PlainSpark

CHANGING: Final = frozenset(
    [
        "curdate",
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "input_file_block_length",
        "input_file_block_start",
        "input_file_name",
        "java_method",
        "localtime",
        "localtimestamp",
        "monotonically_increasing_id",
        "now",
        "rand",
        "randn",
        "random",
        "randstr",
        "reflect",
        "session_user",
        "shuffle",
        "spark_partition_id",
        "try_reflect",
        "uniform",
        "unix_timestamp",
        "user",
        "uuid",
        "version",
        "read_files",
        "read_kafka",
        "http_request",
        "ai_query",
        "python_worker_logs",
    ]
)
"""Functions whose value is not decided by their arguments alone."""
_MOMENTS: Final = {
    "current_timestamp": "{}",
    "now": "{}",
    "current_date": "CAST({} AS DATE)",
    "curdate": "CAST({} AS DATE)",
    "localtimestamp": "CAST({} AS TIMESTAMP_NTZ)",
    "current_time": "CAST(CAST({} AS TIMESTAMP_NTZ) AS TIME)",
    "localtime": "CAST(CAST({} AS TIMESTAMP_NTZ) AS TIME)",
    "unix_timestamp": "unix_seconds({})",
}
"""Functions of the time of a query, and what they are of its moment."""
WITHOUT_BRACKETS: Final = frozenset(
    [
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    ]
)
"""Functions that are called by their name alone, where no column has it."""
_READS_ALL: Final = frozenset(["pivot", "unpivot", "natural", "table", "|>"])
"""Words of texts that may read columns without naming them."""
_READS_TIMES: Final = frozenset(
    {
        *("convert_timezone", "date_format", "date_trunc", "from_utc_timestamp", "hour", "minute"),
        *("second", "session_window", "timestamp", "timestamp_ltz", "to_timestamp"),
        *("to_timestamp_ltz", "to_unix_timestamp", "to_utc_timestamp", "try_to_timestamp"),
        *("timestampadd", "timestampdiff", "date_part", "datepart", "extract", "window"),
        *("from_json", "from_csv", "from_xml", "months_between", "unix_seconds", "unix_millis"),
        *("unix_micros", "try_cast", "timediff", "time_bucket", "window_time"),
    }
)
"""Words of texts that may read a text as a timestamp."""
_READS_BY_SCHEMA: Final = frozenset({"from_json", "from_csv", "from_xml"})
"""Functions that read texts as the types of a schema, their second argument."""
_PUTS_TOGETHER: Final = frozenset(
    {
        *("=", "==", "<=>", "<", "<=", ">", ">=", "<>", "!=", "in", "between", "case", "coalesce"),
        *("if", "iff", "nvl", "nvl2", "ifnull", "nullif", "greatest", "least", "union", "array"),
        *("map", "intersect", "except", "decode", "+", "-", "equal_null", "using", "natural"),
    }
)
"""Words of texts that may bring a text and a timestamp to one type."""
_NO_DATE: Final = re.compile(r"\s*T?[0-9]{1,2}(:.*)?\s*", re.DOTALL)
_COMMANDS: Final = frozenset(
    {
        *("add", "alter", "analyze", "cache", "call", "clear", "comment", "create", "declare"),
        *("delete", "desc", "describe", "drop", "explain", "insert", "list", "load", "merge"),
        *("msck", "refresh", "repair", "replace", "reset", "set", "show", "truncate", "uncache"),
        *("update", "use"),
    }
)
_FIRST: Final = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_DIALECT: Final = PlainSpark()
_NAMES: Final = frozenset({TokenType.VAR, TokenType.IDENTIFIER})


def is_command(text: object) -> bool:
    """Whether a text is a statement that is no query."""
    match = _FIRST.match(text) if isinstance(text, str) else None
    return match is not None and match[1].lower() in _COMMANDS


def without_comments_before(text: str) -> str:
    """A statement from its first word on."""
    match = _FIRST.match(text)
    return text if match is None else text[match.start(1) :]


def called_names(text: str) -> frozenset[str]:
    """The names of all calls of a text, in lower case."""
    tokens = _DIALECT.tokenize(text)
    return frozenset(
        token.text.lower()
        for token, following in pairwise(tokens)
        if following.token_type == TokenType.L_PAREN and _may_name(token)
    )


def columns_read(text: str, inputs: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """For each input the columns that the text can read: those it names, or all behind a star.

    At least one of each, so that rows can be counted.
    """
    whole = {name: list(columns) for name, columns in inputs.items()}
    try:
        tokens = _DIALECT.tokenize(text)
        trees = _DIALECT.parser().parse(tokens, text)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return whole
    words = {token.text.lower() for token in tokens if token.token_type != TokenType.STRING}
    if words & _READS_ALL or not all(isinstance(tree, exp.Query) for tree in trees):
        return whole
    if any(not _counts_rows(star) for tree in trees if tree for star in tree.find_all(exp.Star)):
        return whole
    return {
        name: [c for c in columns if not c.isascii() or "`" in c or c.lower() in words]
        or columns[:1]
        for name, columns in whole.items()
    }


def why_of_today(text: str, *, texts: bool, times: bool) -> str | None:
    """Why a time of day in some text may be read, which Spark takes as one of the day of the run.

    `texts` and `times` say whether the inputs have columns of text and of timestamps.
    """
    try:
        tokens = _DIALECT.tokenize(text)
    except sqlglot.errors.SqlglotError:
        return "its text was not understood here"
    literals = [token.text for token in tokens if token.token_type == TokenType.STRING]
    named = [token.text.lower() for token in tokens if token.token_type != TokenType.STRING]
    words = set(named) - _timeless_readers(text, named)
    reads = bool(words & _READS_TIMES)
    if (reads or times) and any(_NO_DATE.fullmatch(literal) for literal in literals):
        return "a time without a date is one of the day on which Spark reads it"
    if texts and (reads or (times and words & _PUTS_TOGETHER)):
        return "a text may be a time without a date: one of the day on which Spark reads it"
    return None


def at_moment(text: str, micros: int, columns: Collection[str]) -> str:
    """The text with the moment of a run in place of calls that ask for the time.

    A name without brackets that may be a column's, of the inputs or of the text, stays as it is.
    """
    try:
        tokens = _DIALECT.tokenize(text)
    except sqlglot.errors.SqlglotError:
        return text
    given = [b.text for a, b in pairwise(tokens) if a.token_type == TokenType.ALIAS]
    taken = {name.lower() for name in (*columns, *given)}
    changed = text
    for at in reversed(range(len(tokens))):
        value = _MOMENTS.get(tokens[at].text.lower())
        end = None if value is None else _end_of_call(tokens, at, taken)
        if value is not None and end is not None:
            value = value.format(f"timestamp_micros({micros}L)")
            changed = f"{changed[: tokens[at].start]}{value}{changed[end + 1 :]}"
    return changed


def _end_of_call(tokens: list[Token], at: int, taken: Collection[str]) -> int | None:
    """Where a call without arguments ends; None if there is none at this token."""
    name, before = tokens[at], tokens[at - 1] if at else None
    after = [token.token_type for token in tokens[at + 1 : at + 3]]
    if name.token_type == TokenType.STRING or (before and before.token_type == TokenType.DOT):
        return None
    if after == [TokenType.L_PAREN, TokenType.R_PAREN]:
        return tokens[at + 2].end
    is_word = (
        name.text.lower() in WITHOUT_BRACKETS
        and name.text.lower() not in taken
        and name.token_type != TokenType.IDENTIFIER
    )
    if not is_word or (after and after[0] in (TokenType.L_PAREN, TokenType.DOT)):
        return None
    return name.end


def _timeless_readers(text: str, words: Sequence[str]) -> set[str]:
    """Functions whose schemas are all spelled out, without a timestamp or a date."""
    readers = {word: words.count(word) for word in _READS_BY_SCHEMA.intersection(words)}
    if not readers:
        return set()
    try:
        trees = _DIALECT.parse(text)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return set()
    calls = [call for tree in trees if tree for call in tree.find_all(exp.Anonymous)]
    timeless = [call.name.lower() for call in calls if _has_timeless_schema(call)]
    return {name for name, mentions in readers.items() if timeless.count(name) == mentions}


def _has_timeless_schema(call: exp.Anonymous) -> bool:
    _, schema = (*call.expressions, None, None)[:2]
    return isinstance(schema, exp.Literal) and schema.is_string and not may_have_times(schema.name)


def is_time_of_day(text: str) -> bool:
    """Whether a text may be a time without a date."""
    return _NO_DATE.fullmatch(text) is not None


def reads_times(names: frozenset[str]) -> bool:
    """Whether one of these functions may read a text as a timestamp."""
    return bool(names & _READS_TIMES)


def _counts_rows(star: exp.Expression) -> bool:
    """Whether this is the star of count(*)."""
    call = star.parent
    return isinstance(call, exp.Anonymous) and call.name.lower() == "count"


def why_unrecognised(text: str, inputs: Mapping[str, Collection[str]]) -> str | None:
    """Why equal inputs, given with their columns, may give other rows; None if they do not."""
    if text[:6].upper() == "TABLE ":
        return f"it reads {text[6:].strip()}, which may change"
    try:
        tokens = _DIALECT.tokenize(text)
        trees = _DIALECT.parser().parse(tokens, text)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return "its text was not understood here"
    changing = called_names(text) & CHANGING
    changing |= {t.text.lower() for t in tokens if t.token_type != TokenType.STRING} & (
        WITHOUT_BRACKETS
    )
    if changing:
        return f"{min(changing)} gives other values in each run"
    if _has_qualified_call(tokens):
        return "it calls a function of a catalog, which may change"
    if len(trees) != 1 or not isinstance(trees[0], exp.Expression):
        return "its text was not understood here"
    return _why_tree_unrecognised(trees[0], inputs)


def _why_tree_unrecognised(
    tree: exp.Expression, inputs: Mapping[str, Collection[str]]
) -> str | None:
    if tree.find(exp.TableSample) is not None:
        return "a sample has other rows in each run"
    own = {name.lower() for name in inputs}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Anonymous | exp.Func):
            continue
        names = own | _common_names_before(table, tree)
        if table.args.get("db") is not None or table.name.lower() not in names:
            return f"it reads {table.sql(dialect=_DIALECT)}, which may change"
    known = {name.lower() for columns in inputs.values() for name in columns} | own
    known |= _names_given(tree)
    for column in tree.find_all(exp.Column):
        first = column.parts[0].name.lower()
        if first not in known:
            return f"{first} is no column of its inputs"
    return None


def _common_names_before(table: exp.Table, tree: exp.Expression) -> set[str]:
    """Names of the tree's own WITH that this table can mean; of one within it, none."""
    clause = tree.args.get("with_") or tree.args.get("with")
    if not isinstance(clause, exp.With):
        return set()
    names: set[str] = set()
    for common in clause.expressions:
        is_within = any(parent is common for parent in _parents(table))
        if is_within and not clause.args.get("recursive"):
            break
        names.add(common.alias.lower())
        if is_within:
            break
    return names


def _parents(node: exp.Expression) -> Iterator[exp.Expression]:
    parent = node.parent
    while isinstance(parent, exp.Expression):
        yield parent
        parent = parent.parent


def _names_given(tree: exp.Expression) -> set[str]:
    """Names that the text itself gives: aliases of columns and tables, parameters of lambdas."""
    given: set[str] = set()
    for node in tree.find_all(exp.Alias, exp.TableAlias, exp.Lambda, exp.Aliases, exp.PivotAlias):
        parts = [node.this, node.args.get("alias"), *(node.args.get("columns") or ())]
        parts += node.expressions
        for part in parts:
            if isinstance(part, exp.Identifier):
                given.add(part.name.lower())
            elif isinstance(part, str):
                given.add(part.lower())
    return given


def _has_qualified_call(tokens: list[Token]) -> bool:
    for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (
            before.token_type == TokenType.DOT
            and following.token_type == TokenType.L_PAREN
            and _may_name(token)
        ):
            return True
    return False


def _may_name(token: Token) -> bool:
    return token.token_type in _NAMES or token.text.replace("_", "").isalnum()
