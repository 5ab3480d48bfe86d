"""PIVOT and UNPIVOT."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.relation import Relation
from millrace.sql.typed_sql import NotNative


def pivoted(context: BuildContext, relation: Relation, tree: exp.Pivot) -> Relation:
    """Rows with values of a column as columns, or columns as values of one."""
    del context, relation
    raise NotNative("PIVOT is not built here", found=tree.sql("spark"), fix="")
