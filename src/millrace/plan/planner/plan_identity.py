"""Tells which parts of a plan are equal: the same operators over the same inputs.

Invariant: parts with one number have the same rows. A part is never equal to another one, nor to
itself, if it calls a function that is not recognised: each call may give other rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from itertools import count
from typing import Any

import pyarrow as pa

from millrace.plan.nodes.frame_scan import FrameScan
from millrace.plan.nodes.map_batches import FunctionNode, identity_of
from millrace.plan.nodes.node import Node
from millrace.scan.source import FileSource


class PlanIdentity:
    """Numbers of the parts of plans. Equal parts have equal numbers."""

    def __init__(self) -> None:
        self._numbers = count()
        self._by_content: dict[Hashable, int] = {}
        self._by_node: dict[int, tuple[Node, int]] = {}  # A node is kept, so its id stays its own.
        self._sources: dict[int, tuple[FileSource, Hashable]] = {}

    def of(self, node: Node) -> int | None:
        """The number of a part; None if nothing is equal to it."""
        if id(node) in self._by_node:
            return self._by_node[id(node)][1]
        content = self._content(node)
        if content is None:
            return None
        try:
            number = self._by_content.get(content)
        except TypeError:  # A value that cannot be compared.
            return None
        if number is None:
            number = self._by_content[content] = next(self._numbers)
        self._by_node[id(node)] = node, number
        return number

    def _content(self, node: Node) -> Hashable | None:
        below = tuple(map(self.of, node.children))
        if None in below:
            return None
        own: tuple[Hashable, ...]
        if isinstance(node, FunctionNode):
            identity, _ = identity_of(node)
            if identity is None:
                return None
            own = (identity, _columns(node.schema))
        elif isinstance(node, FrameScan):
            own = (id(node.frame), node.columns)
        else:
            known = [getattr(node, field.name) for field in fields(node)]  # type: ignore[arg-type]
            own = tuple(self._value(value) for value in known)
        return (type(node), own, below)

    def _value(self, value: Any) -> Hashable:  # noqa: ANN401 - any field of a node
        match value:
            case Node():
                return self.of(value)
            case FileSource():
                return self._source(value)
            case pa.Schema():
                return _columns(value)
            case tuple():
                return tuple(map(self._value, value))
            case _:
                return value  # type: ignore[no-any-return]

    def _source(self, source: FileSource) -> Hashable:
        if id(source) not in self._sources:
            content = (
                source.format,
                _columns(source.schema),
                tuple(sorted((name, repr(value)) for name, value in source.options.items())),
                source.partitions,
                source.timestamps,
                tuple(
                    shape.file if shape.mapping is None else repr(shape.identity())
                    for shape in source.shapes
                ),
            )
            self._sources[id(source)] = source, content
        return self._sources[id(source)][1]


def _columns(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in schema)
