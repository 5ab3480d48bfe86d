"""What a job is, as values, and the rule that makes each batch count once. Pure.

`model` and `hops` say what there is to do, `calls`, `events` and `letters` what is written down,
`rule` what a worker may publish, and `choosing` what it does next.
"""
