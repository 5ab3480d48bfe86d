"""Laws of publishing: whatever answers are lost, every change counts once or the lease is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipeline.core.machine_kit import rows
from tests.unit.pipeline.worker.worker_kit import hop, map_step

from millrace.pipeline.core.publish_machine import (
    PublishAction,
    PublishMachine,
    ReadCommitted,
    ReportLeaseLost,
    ReportPublished,
    SendAgain,
    SendTransaction,
)
from millrace.pipeline.core.unit_publish import UnitPublish

FAULTS = ("answered", "lost before", "lost after", "late")


@dataclass
class Ledger:
    """The committed offset and the rows, changed by transactions that expect the offset."""

    committed: int | None = None
    values: list[int] = field(default_factory=list)
    late: list[SendTransaction] = field(default_factory=list)

    def apply(self, sent: SendTransaction) -> bool:
        assert sent.commit is not None
        if sent.commit.expected != self.committed:
            return False
        self.committed = sent.commit.offset
        for part in sent.appends:
            self.values += [value // 10 for value in part.rows["x"].to_pylist()]
        return True


def publish(
    machine: PublishMachine, ledger: Ledger, change: UnitPublish, faults: list[str]
) -> bool:
    """Publish over a network with faults; whether the machine says that it is published."""
    action: PublishAction = machine.on_publish(change)
    while True:
        match action:
            case SendTransaction():
                fault = faults.pop() if faults else "answered"
                if fault == "late":
                    ledger.late.append(action)
                    action = machine.on_answer_lost()
                elif fault == "lost before":
                    action = machine.on_answer_lost()
                elif not ledger.apply(action):
                    action = machine.on_conflict()
                else:
                    is_lost = fault == "lost after"
                    action = machine.on_answer_lost() if is_lost else machine.on_answer({})
            case ReadCommitted():
                action = machine.on_committed(ledger.committed)
                for sent in ledger.late:
                    ledger.apply(sent)
                ledger.late.clear()
            case SendAgain():
                action = machine.on_publish(change)
            case ReportPublished():
                return True
            case ReportLeaseLost():
                return False
            case _:
                raise AssertionError(action)


@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=12), other_at=st.none() | st.integers(0, 4)
)
def test_every_change_counts_once_or_the_lease_is_lost(
    faults: list[str], other_at: int | None
) -> None:
    ledger = Ledger()
    machine = PublishMachine(hop(map_step("f", print)), "src/0", 1, at=0, is_new=True)
    published: list[int] = []
    for number in range(5):
        if number == other_at:
            other = PublishMachine(
                machine.hop, "src/0", 1, at=machine.at, is_new=ledger.committed is None
            )
            change = UnitPublish(next=number + 10, outputs=(rows(100).batch,))
            assert publish(other, ledger, change, [])
        change = UnitPublish(next=number + 1, outputs=(rows(number).batch,))
        if not publish(machine, ledger, change, faults):
            assert other_at is not None
            break
        published.append(number)

    assert [value for value in ledger.values if value != 100] == published
    assert published == list(range(5 if other_at is None else other_at))
