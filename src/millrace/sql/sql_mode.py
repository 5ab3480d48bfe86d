"""The mode in which expressions are read and computed, as a Spark session's settings ask for it.

Under a setting that is not at a value listed here, Spark computes what depends on it. A setting of
`spark.sql.legacy.` that is not known counts as one that changes expressions. Pure.

Invariant: a plan is built in one mode. `spark/session_settings.py` compares it with the session's
mode when the plan runs, so no part of a query follows other settings than the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlMode:
    """What of a session's settings changes answers.

    `on_spark`, `text_on_spark` and `files_on_spark` name the first setting because of which Spark
    itself has to compute expressions, read SQL text, or read files; None if there is none.
    """

    ansi: bool = True
    case_sensitive: bool = False
    on_spark: str | None = None
    text_on_spark: str | None = None
    files_on_spark: str | None = None

    def __str__(self) -> str:
        parts = [f"spark.sql.ansi.enabled = {str(self.ansi).lower()}"]
        parts += ["spark.sql.caseSensitive = true"] if self.case_sensitive else []
        given = (self.on_spark, self.text_on_spark, self.files_on_spark)
        return ", ".join([*parts, *dict.fromkeys(one for one in given if one is not None)])


DEFAULT: Final = SqlMode()
_MODE: Final[ContextVar[SqlMode]] = ContextVar("sql_mode", default=DEFAULT)


def current_mode() -> SqlMode:
    """The mode of the call that is being built."""
    return _MODE.get()


@contextmanager
def in_mode(mode: SqlMode) -> Iterator[None]:
    """Build what follows in a mode."""
    before = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(before)


@contextmanager
def with_ansi(*, ansi: bool) -> Iterator[None]:
    """Build what follows with or without errors for what does not fit."""
    with in_mode(replace(current_mode(), ansi=ansi)):
        yield


def in_ansi_mode() -> bool:
    """Whether what does not fit is an error, as with spark.sql.ansi.enabled.

    Where it is not, a part that can fail is left to Spark, unless it is written so that it gives
    Spark's other value.
    """
    return current_mode().ansi


def folded(name: str) -> str:
    """A name as it is compared: in lower case, unless the session tells cases apart."""
    return name if current_mode().case_sensitive else name.lower()


ANSI: Final = "spark.sql.ansi.enabled"
CASE: Final = "spark.sql.caseSensitive"
LEGACY: Final = "spark.sql.legacy."
_SIZE_OF_NULL: Final = f"{LEGACY}sizeOfNull"
_YES: Final = ("true",)
_NO: Final = ("false",)

EXPRESSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.sql.charAsVarchar": _NO,
    "spark.sql.chunkBase64String.enabled": _YES,
    "spark.sql.decimalOperations.allowPrecisionLoss": _YES,
    "spark.sql.function.concatBinaryAsString": _NO,
    "spark.sql.function.eltOutputAsString": _NO,
    "spark.sql.icu.caseMappings.enabled": _YES,
    "spark.sql.json.enableExactStringParsing": _YES,
    "spark.sql.json.enablePartialResults": _YES,
    "spark.sql.jsonGenerator.ignoreNullFields": _YES,
    "spark.sql.mapKeyDedupPolicy": ("exception",),
    "spark.sql.preserveCharVarcharTypeInfo": _NO,
    "spark.sql.timestampNanosTypes.enabled": _NO,
    "spark.sql.timestampType": ("timestamp_ltz",),
    f"{LEGACY}csv.enableDateTimeParsingFallback": (),
    f"{LEGACY}followThreeValuedLogicInArrayExists": _YES,
    f"{LEGACY}histogramNumericPropagateInputType": _YES,
    f"{LEGACY}json.enableDateTimeParsingFallback": (),
    f"{LEGACY}literal.pickMinimumPrecision": _YES,
    f"{LEGACY}nullInEmptyListBehavior": _NO,
    f"{LEGACY}timeParserPolicy": ("corrected", "exception"),
}
"""Settings that change the values or types of expressions, with the values as which we compute."""
TEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.sql.ansi.doubleQuotedIdentifiers": _NO,
    "spark.sql.ansi.enforceReservedKeywords": _NO,
    "spark.sql.ansi.relationPrecedence": _NO,
    "spark.sql.groupByAliases": _YES,
    "spark.sql.groupByOrdinal": _YES,
    "spark.sql.lateralColumnAlias.enableImplicitResolution": _YES,
    "spark.sql.orderByOrdinal": _YES,
    "spark.sql.parser.escapedStringLiterals": _NO,
    "spark.sql.parser.quotedRegexColumnNames": _NO,
    "spark.sql.parser.singleCharacterPipeOperator.enabled": _YES,
    "spark.sql.stableDerivedColumnAlias.enabled": _NO,
    f"{LEGACY}bangEqualsNot": _NO,
    f"{LEGACY}consecutiveStringLiterals.enabled": _NO,
    f"{LEGACY}cteDuplicateAttributeNames": _NO,
    f"{LEGACY}ctePrecedencePolicy": ("corrected",),
    f"{LEGACY}exponentLiteralAsDecimal.enabled": _NO,
    f"{LEGACY}groupingIdWithAppendedUserGroupBy": _NO,
    f"{LEGACY}identifierClause": _NO,
    f"{LEGACY}integerGroupingId": _NO,
    f"{LEGACY}parser.havingWithoutGroupByAsWhere": _NO,
    f"{LEGACY}scalarSubqueryCountBugBehavior": _NO,
    f"{LEGACY}setopsPrecedence.enabled": _NO,
}
"""Settings that change what SQL text means."""
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.sql.files.ignoreCorruptFiles": _NO,
    "spark.sql.files.ignoreInvalidPartitionPaths": _NO,
    "spark.sql.files.ignoreMissingFiles": _NO,
    "spark.sql.files.ignoredPathSegmentRegex": ("^[._]",),
    "spark.sql.parquet.binaryAsString": _NO,
    "spark.sql.parquet.datetimeRebaseModeInRead": ("corrected",),
    "spark.sql.parquet.fieldId.read.enabled": _NO,
    "spark.sql.parquet.inferTimestampNTZ.enabled": _YES,
    "spark.sql.parquet.int96AsTimestamp": _YES,
    "spark.sql.parquet.int96RebaseModeInRead": ("corrected",),
    "spark.sql.parquet.int96TimestampConversion": _NO,
    "spark.sql.parquet.mergeSchema": _NO,
    "spark.sql.sources.partitionColumnTypeInference.enabled": _YES,
    f"{LEGACY}parquet.nanosAsLong": _NO,
    f"{LEGACY}parquet.returnNullStructIfAllFieldsMissing": _NO,
}
"""Settings that change what files hold."""
_SIGNS: Final = {
    "doubleQuotedIdentifiers": re.compile('"'),
    "escapedStringLiterals": re.compile(r"\\"),
    "consecutiveStringLiterals": re.compile("''"),
    "exponentLiteralAsDecimal": re.compile(r"\d[eE]"),
    "bangEqualsNot": re.compile("!(?!=)"),
}
"""What a text has in it that some of these settings give another meaning."""
_OF_NO_MATTER: Final = tuple(
    f"{LEGACY}{name}"
    for name in (
        *("addSingleFileInAddFile", "allowAutoGeneratedAliasForView", "allowEmptySchemaWrite"),
        *("allowNonEmptyLocationInCTAS", "allowTempViewCreation", "allowUntypedScalaUDF", "avro."),
        *("allowSessionVariableInPersistedView", "blockCreateTempTable", "bucketedTableScan."),
        *("createHiveTableByDefault", "dataFrameWriterV2", "dataset.", "db2.", "emptyCurrentDBIn"),
        *("execution.", "hive.", "inlineCTEInCommands", "jdbc.", "keepCommandOutputSchema"),
        *("keepPartitionSpec", "mssqlserver.", "mysql.", "notReserveProperties", "oracle."),
        *("nullValueWritten", "observeMetrics", "parseNullPartitionSpec", "persistentCatalogFirst"),
        *("postgres.", "raiseErrorWithoutErrorClass", "readFileSourceTableCache", "v1Identifier"),
        *("replaceDatabricksSparkAvro.", "sessionInitWith", "setCommandRejects", "useV1Command"),
        *("skipTypeValidation", "storeAnalyzedPlan", "useCurrentConfigsForView", "viewSchema"),
    )
)
"""Old forms of what is not done here: commands, writing, other databases, words of errors."""


def mode_of(given: Mapping[str, str]) -> SqlMode:
    """The mode that the settings of a session ask for."""
    is_ansi = given.get(ANSI, "true").lower() == "true"
    return SqlMode(
        ansi=is_ansi,
        case_sensitive=given.get(CASE, "false").lower() == "true",
        on_spark=_first_other(given, EXPRESSIONS) or _first_legacy(given, is_ansi=is_ansi),
        text_on_spark=", ".join(_others(given, TEXT)) or None,
        files_on_spark=_first_other(given, FILES),
    )


def changes_answers(name: str) -> bool:
    """Whether a setting of this name may change answers."""
    known = name in EXPRESSIONS or name in TEXT or name in FILES or name in (ANSI, CASE)
    return known or (name.startswith(LEGACY) and not name.startswith(_OF_NO_MATTER))


def reads_otherwise(text: str, settings: str) -> bool:
    """Whether the text of one expression means something else under these settings."""
    return any(name in settings and sign.search(text) for name, sign in _SIGNS.items())


def _others(given: Mapping[str, str], known: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for name in sorted(known.keys() & given.keys()):
        if given[name].lower() not in known[name]:
            yield f"{name} = {given[name]}"


def _first_other(given: Mapping[str, str], known: Mapping[str, tuple[str, ...]]) -> str | None:
    return next(_others(given, known), None)


def _first_legacy(given: Mapping[str, str], *, is_ansi: bool) -> str | None:
    """The first old way that is on. All that have no place above are off in a new session."""
    for name in sorted(given):
        is_listed = name in EXPRESSIONS or name in TEXT or name in FILES
        if not name.startswith(LEGACY) or is_listed or name.startswith(_OF_NO_MATTER):
            continue
        usual = "true" if name == _SIZE_OF_NULL else "false"
        without_effect = name == _SIZE_OF_NULL and is_ansi
        if given[name].lower() != usual and not without_effect:
            return f"{name} = {given[name]}"
    return None
