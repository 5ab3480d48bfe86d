from __future__ import annotations

from millrace.transport.agent.agent_lease import AgentLease


def test_a_lease_runs_out_when_nobody_calls() -> None:
    lease = AgentLease(length_ms=100, renewed_at_ms=0)

    assert not lease.on_tick(99)
    assert lease.on_tick(100)


def test_each_call_renews_it() -> None:
    lease = AgentLease(length_ms=100, renewed_at_ms=0)

    assert lease.on_call(90)
    assert not lease.on_tick(189)
    assert lease.on_tick(190)


def test_a_call_after_the_end_is_turned_away_and_brings_nothing_back() -> None:
    lease = AgentLease(length_ms=100, renewed_at_ms=0)
    lease.on_tick(100)

    assert not lease.on_call(101)
    assert lease.on_tick(102)


def test_without_a_length_it_never_runs_out() -> None:
    lease = AgentLease(length_ms=None, renewed_at_ms=0)

    assert not lease.on_tick(10**12)
