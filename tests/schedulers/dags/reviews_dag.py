"""What a user of Airflow writes: a task that is a job, with retries."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from millrace.schedulers.airflow import MillraceJobOperator


def job_task(name: str, **more: Any) -> None:  # noqa: ANN401 - arguments of the operator
    """A task over a folder of its own; tests say where by the environment."""
    folder = f"{os.environ['TEST_FOLDER']}/{name}"
    arguments = {"folder": folder, "url": os.environ["TEST_URL"], "rows": 80}
    with DAG(name, schedule=None):
        MillraceJobOperator(
            task_id="paid",
            workspace=f"{folder}/mill",
            job="reviews_job:build",
            arguments=arguments | more.pop("arguments", {}),
            progress_every_s=1,
            retries=2,
            retry_delay=timedelta(seconds=1),
            **more,
        )


job_task("killed")
job_task("spent", arguments={"budget": 10})
job_task("stopped", spark="local[2]")
