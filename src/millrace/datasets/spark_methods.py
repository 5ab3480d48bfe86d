"""Methods of Spark's DataFrame that Spark itself computes, and those that make no sense here."""

from __future__ import annotations

from typing import Final

_RDD: Final = (
    "RDDs live in the JVM of a session, and nothing of them is durable",
    "use map_batches, mapInArrow or mapInPandas; or to_spark().rdd on a classic session",
)
_STREAM: Final = (
    "a dataset has an end; streams are journals, jobs and coordinated reads here",
    "use ws.job(...).source(...), ws.reads(...), or spark.readStream.format('millrace')",
)
_SAME: Final = (
    "it compares plans of Spark; here equal work is recognised when it runs",
    "use run(): its report says what was reused",
)
NOT_OFFERED: Final[dict[str, tuple[str, str]]] = {
    "rdd": _RDD,
    "writeStream": _STREAM,
    "dropDuplicatesWithinWatermark": _STREAM,
    "executionInfo": ("it is of a query on Spark Connect", "use run(), which returns a report"),
    "metadataColumn": ("files have no metadata columns here", "use ws.from_spark(frame)"),
    "applyInPandasWithState": _STREAM,
    "transformWithState": _STREAM,
    "transformWithStateInPandas": _STREAM,
    "sameSemantics": _SAME,
    "semanticHash": _SAME,
    "storageLevel": ("rows are saved in the workspace, at no level", "use run(), which reports"),
}
"""By name: the reason, and what to do instead."""

BY_SPARK: Final[dict[str, str]] = {
    "replace": "by its rules for types",
    "describe": "with its own rules for statistics",
    "summary": "with its own rules for statistics",
    "freqItems": "with its own rules for statistics",
    "approxQuantile": "with its own rules for statistics",
    "corr": "with its own rules for statistics",
    "cov": "with its own rules for statistics",
    "crosstab": "at the call: the rows decide the columns",
    "transpose": "at the call: the rows decide the columns",
    "to": "by its rules for types",
    "observe": "its metrics are computed at the call, and Spark reports them",
    "zipWithIndex": "over the saved rows",
    "sample": "with its random numbers",
    "sampleBy": "with its random numbers",
    "randomSplit": "with its random numbers",
    "toPandas": "with its choice of types, over the saved rows",
    "foreach": "over the saved rows",
    "foreachPartition": "over the saved rows",
    "writeTo": "over the saved rows",
    "mergeInto": "over the saved rows",
    "pandas_api": "over the saved rows",
    "plot": "over the saved rows",
    "createGlobalTempView": "over the saved rows",
    "createOrReplaceGlobalTempView": "over the saved rows",
}
"""Methods that Spark computes over saved rows, by name: how."""
