"""Balances that follow transfers between accounts: killed at any time, a run counts none twice.

Each transfer takes from one account and gives to another, so the sum of all balances is nought.
"""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

import millrace as mr

FOLDER = Path("example-07")
ACCOUNTS, TRANSFERS, RUNS = 100, 2_000, 3
SCHEMA = pa.schema([("payer", pa.int64()), ("payee", pa.int64()), ("amount", pa.int64())])


def transfers(seed: int) -> pa.Table:
    """Transfers by chance."""
    chance = np.random.default_rng(seed)
    payers, payees = chance.integers(0, ACCOUNTS, (2, TRANSFERS))
    return pa.table([payers, payees, chance.integers(1, 100, TRANSFERS)], schema=SCHEMA)


def bank(ws: mr.Workspace) -> mr.Job:
    """A row for each side of a transfer, and their sum for each account."""
    job = ws.job("bank")
    moved = job.source("transfers", journal="transfers")
    taken = moved.select("payer AS account", "-amount AS amount")
    given = moved.select("payee AS account", "amount")
    sides = taken.union(given).key_by("account")
    balances = sides.aggregate("balances", balance="sum(amount)", moves="count(*)")
    balances.sink_journal("changes")
    return job


shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir()
with mr.open(FOLDER / "mill") as ws:
    ws.journals.create("transfers", SCHEMA)
    for run in range(RUNS):
        ws.journals.append("transfers", transfers(run))
        bank(ws).run()
        state = ws.state("bank/balances").to_arrow()
        total, moves = sum(state["balance"].to_pylist()), sum(state["moves"].to_pylist())
        print(f"{state.num_rows} accounts, {moves} moves, their sum is {total}")
