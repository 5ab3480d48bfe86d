"""What a slice asks of its journals, and what it gets: arrays by tag, and joined rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.reads.model.tags import Ints, Tag, bindings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Read these journals from these offsets on, every row as it was stored."""

    tags: Ints
    names: Sequence[str]
    offsets: Ints
    bytes_each: int
    """About so much of each journal, and of each at least a row that is there."""


@dataclass(frozen=True, slots=True)
class TaggedRows:
    """Rows of many tags and one schema, those of a tag together and in order."""

    batches: Sequence[pa.RecordBatch]
    """Behind each other."""
    tags: Ints
    """Of the rows that follow each other, `counts` rows of each."""
    counts: Ints

    def by_binding(
        self, sharing: Mapping[Tag, Sequence[Tag]]
    ) -> Iterator[tuple[int, TaggedRows, pa.RecordBatch]]:
        """The rows of each binding in one batch; `sharing` has all tags that a tag was read for."""
        whole = self.batches[0] if len(self.batches) == 1 else _joined(self.batches)
        runs, tags = np.arange(len(self.tags)), self.tags
        if sharing:
            pairs = [
                (run, shared)
                for run, tag in enumerate(self.tags.tolist())
                for shared in sharing.get(tag, (tag,))
            ]
            runs = np.array([run for run, _ in pairs], np.int64)
            tags = np.array([tag for _, tag in pairs], np.int64)
        bindings = bindings_of(tags)
        for binding in np.unique(bindings).tolist():
            which = bindings == binding
            part = TaggedRows((), tags[which], self.counts[runs[which]])
            yield binding, part, _picked(whole, self.counts, runs[which])


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    # The C library keeps tens of megabytes for the next call; Arrow's own pool gives them back to
    # the kernel, which clears them page by page: that took several times as long as the copy.
    return pa.concat_batches(batches, memory_pool=pa.system_memory_pool())


def _picked(whole: pa.RecordBatch, counts: Ints, runs: Ints) -> pa.RecordBatch:
    """The rows of some runs."""
    if len(runs) == len(counts):
        return whole
    ends = np.cumsum(counts)
    spans = zip((ends - counts)[runs].tolist(), counts[runs].tolist(), strict=True)
    return pa.concat_batches([whole.slice(begin, count) for begin, count in spans])


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTags:
    """The answer to a `Fetch`. A tag that is missing was not reached."""

    tags: Ints
    nexts: Ints
    """Where each is read from next."""
    ends: Ints
    """Where the journal of each ended."""
    rows: Sequence[TaggedRows]

    def shared(self, sharing: Mapping[Tag, Sequence[Tag]]) -> tuple[Ints, Ints, Ints]:
        """Tags, nexts and ends, also of the tags that share the fetch of another."""
        if not sharing:
            return self.tags, self.nexts, self.ends
        pairs = [
            (index, shared)
            for index, tag in enumerate(self.tags.tolist())
            for shared in sharing.get(tag, (tag,))
        ]
        places = np.array([index for index, _ in pairs], np.int64)
        return (
            np.array([tag for _, tag in pairs], np.int64),
            self.nexts[places],
            self.ends[places],
        )
