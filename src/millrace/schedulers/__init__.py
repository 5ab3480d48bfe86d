"""Jobs as tasks of schedulers: Airflow and Dagster, each with an extra of its own.

A try of a task is a run of a job. So the next try, in any process that reaches the workspace, goes
on where the last one stopped. Only the modules of their names import the schedulers.
"""
