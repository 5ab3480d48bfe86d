"""What a job is, as values, and the rule that makes each batch count once. Pure.

`job_model` and `hops` describe the work; `call_records`, `job_events` and `dead_letters` the rows
of its journals. `publish_machine` decides what a worker publishes, `expensive_machine` which calls
it makes, and `unit_choice` which unit it takes next.
"""
