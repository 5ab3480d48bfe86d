"""Asks an instance of Dagster, in Dagster's own environment: `dagster_client.py WHAT OF`."""

from __future__ import annotations

import json
import sys

import dagster as dg

what, run_id = sys.argv[1:]
with dg.DagsterInstance.get() as instance:
    if what == "make":
        instance.get_runs(limit=1)
    elif what == "newest":
        (newest,) = instance.get_runs(dg.RunsFilter(job_name=run_id), limit=1)
        sys.stdout.write(newest.run_id)
    elif what == "show":
        run = instance.get_run_by_id(run_id)
        assert run is not None, run_id
        entries = instance.all_logs(run_id)
        events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
        made = [event for event in events if event.event_type_value == "ASSET_MATERIALIZATION"]
        shown = {
            "status": run.status.value,
            "log": [entry.user_message for entry in entries],
            "events": [event.event_type_value for event in events],
            "metadata": [
                {name: value.value for name, value in event.materialization.metadata.items()}
                for event in made
            ],
        }
        sys.stdout.write(json.dumps(shown, default=str))
