"""What a user of Dagster writes: an asset that is a job, with a retry policy."""

import os

import dagster as dg
from reviews_job import build  # type: ignore[import-not-found]

from millrace.schedulers.dagster import MillraceWorkspace

FOLDER, URL = os.environ["TEST_FOLDER"], os.environ["TEST_URL"]
POLICY = dg.RetryPolicy(max_retries=2, delay=1)


@dg.asset(retry_policy=POLICY)  # type: ignore[untyped-decorator]
def killed(context: dg.AssetExecutionContext, mill: MillraceWorkspace) -> dg.MaterializeResult:
    return mill.run(context, build, folder=f"{FOLDER}/killed", url=URL, rows=80)


@dg.asset(retry_policy=POLICY)  # type: ignore[untyped-decorator]
def spent(context: dg.AssetExecutionContext, mill: MillraceWorkspace) -> dg.MaterializeResult:
    place = f"{FOLDER}/spent"
    return mill.run(context, build, folder=place, url=URL, rows=80, budget=10)


defs = dg.Definitions(
    assets=[killed, spent],
    jobs=[dg.define_asset_job(f"{name}_job", selection=name) for name in ("killed", "spent")],
    resources={"mill": MillraceWorkspace(path=f"{FOLDER}/mill", progress_every_s=1)},
)
