"""LATERAL VIEW, and functions that make several rows of one."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.relation import Relation
from millrace.sql.typed_sql import NotNative


def lateral_view(context: BuildContext, relation: Relation, tree: exp.Lateral) -> Relation:
    """Each row with each row that a function makes of it."""
    del context, relation
    raise NotNative("a lateral view is not built here", found=tree.sql("spark"), fix="")
