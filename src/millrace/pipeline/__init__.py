"""Pipelines: steps joined by journals, each batch of rows published once.

`model` and `hops` say what a job is, `rule` what a worker may publish, `worker` does it, and
`millrace.spark` runs workers as tasks.
"""
