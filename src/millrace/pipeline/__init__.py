"""Pipelines: steps joined by journals, each batch of rows published once.

A folder for each role, each using only those above it:

    core        what a job is, as values, and the rule that makes each batch count once. Pure
    large       values too large for journals: files, and rows that refer to them
    definition  what the user writes down, and whether it is still what it was
    calling     the user's function, called for a batch of rows
    report      what a job did: its record, its counts, text, page and pictures
    sinks       where rows end up
    upkeep      a job's journals made, counted, set back and thinned out, from any process
    work        workers: they lease units, do them, and publish what they did

`millrace.spark` runs workers as tasks.
"""
