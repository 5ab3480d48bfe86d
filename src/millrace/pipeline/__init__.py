"""Pipelines: steps joined by journals, each batch of rows published once.

A folder for each role, each using only those above it:

    core        what a job is, as values, and the rule that makes each batch count once. Pure
    large       values too large for journals: files, and rows that refer to them
    define      the job as the user writes it, and its changes since the last run
    calling     the user's function, called for a batch of rows
    report      the results of a job: its record, its counts, text, page and pictures
    sinks       the targets of rows: Parquet files, journals
    run         runs of a job: start, lease, status, reset, removal of rows that were read
    worker      workers: they lease units, work on them, and publish the results

`millrace.spark` runs workers as tasks.
"""
