"""Coordinated reads with members on the cluster; each checkpoint's rows go to a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from tests.standalone.session import READ, keep, kept, start_session

import millrace as mr
from millrace.errors import ReadsFailed
from millrace.reads.model.tags import TAG, journals_of

MEMBERS = 2
CONFIG = mr.Config().with_options(
    reads_fetch_bytes_max=2_048, reads_fetch_bytes_min=1_024, reads_members_wait=240
)


def main(mill: str, out: str, wanted: str, pause_s: str) -> None:
    """Read until so many rows are kept, with a pause after each checkpoint."""
    spark = start_session()
    with mr.open(mill, spark, config=CONFIG) as ws:
        ids = {info.id: info.name for info in ws.journals.list("t")}
        session = ws.reads(READ, members=MEMBERS, on_spark=True, restart=True, take_over=True)
        while kept(Path(out)) < int(wanted):
            checkpoint = session.next_checkpoint(60.0)
            if checkpoint is None:
                continue
            rows: list[list[object]] = []
            try:
                for member in range(MEMBERS):
                    for batch in session.batches(member, checkpoint):
                        tags = batch[TAG].to_numpy(zero_copy_only=False).astype(np.int64)
                        names = [ids[each] for each in journals_of(tags).tolist()]
                        columns = (names, batch["key"].to_pylist(), batch["amount"].to_pylist())
                        rows += [list(row) for row in zip(*columns, strict=True)]
                keep(Path(out) / f"{checkpoint.number}.json", sorted(rows))
                session.commit(checkpoint)
            except ReadsFailed:
                continue  # It comes again.
            time.sleep(float(pause_s))
        session.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
