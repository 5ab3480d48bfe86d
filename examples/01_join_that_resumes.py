"""A join that resumes: its first run is killed with SIGKILL, the second run continues.

Nothing is repaired in between. The finished work of the first run is in the workspace, as files.
"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr

FOLDER = "example-01"
# One task would join so few rows, with nothing to resume. These limits make several stages.
CONFIG = mr.Config().with_options(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=20_000
)


def make_data() -> None:
    """Orders in six files, customers in two."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(f"{FOLDER}/orders")
    os.makedirs(f"{FOLDER}/customers")
    for number in range(6):
        ids = np.arange(number * 1000, number * 1000 + 1000)
        orders = pa.table({"order_id": ids, "cust_id": ids * 7 % 2000, "amount": ids % 90})
        pq.write_table(orders, f"{FOLDER}/orders/{number}.parquet")
        if number < 2:
            customers = {"cust_id": ids, "nation": np.where(ids % 3 == 0, "PERU", "JAPAN")}
            pq.write_table(pa.table(customers), f"{FOLDER}/customers/{number}.parquet")


def by_nation(ws: mr.Workspace) -> mr.Dataset:
    """Describe the query. Nothing runs before `collect`, `run` or `show`."""
    orders, customers = ws.read_parquet(f"{FOLDER}/orders"), ws.read_parquet(f"{FOLDER}/customers")
    joined = orders.join(customers, on="cust_id")
    return joined.group_by("nation").agg(total="sum(amount)", n="count(*)")


if "--first" in sys.argv:
    by_nation(mr.open(f"{FOLDER}/mill", config=CONFIG)).to_arrow()
    sys.exit("not killed?")

make_data()
# A named fault point, for tests: the process kills itself before stage 2, the join, begins.
point = {"MILLRACE_FAULT": "dataset.driver.before_stage@2"}
first = subprocess.run([sys.executable, __file__, "--first"], env=os.environ | point, check=False)  # noqa: S603
print(f"\nfirst run: killed by signal {-first.returncode} before the join\n\nsecond run:")

with mr.open(f"{FOLDER}/mill", config=CONFIG) as ws:
    print(by_nation(ws).run())
    by_nation(ws).show()
