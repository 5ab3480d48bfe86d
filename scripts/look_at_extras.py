"""Says whether an installed wheel has these extras, and no others.

look_at_extras.py [EXTRA...] [--also EXTRA...]: others that packages of an extra may bring along.
"""

import sys
import tempfile

import pyarrow as pa

import millrace as mr
from millrace.errors import UserError
from millrace.extras import EXTRAS, check_extra, missing_modules

wanted, _, also = " ".join(sys.argv[1:]).partition("--also")
given, brought = set(wanted.split()), set(also.split())
there = {extra for extra in EXTRAS if not missing_modules(extra)}
if not given <= there <= given | brought:
    sys.exit(f"extras that are there: {sorted(there)}; expected: {sorted(given)}")
for extra in EXTRAS.keys() - there:
    try:
        check_extra(extra, "this")
    except UserError as error:
        if f"pip install 'millrace[{extra}]'" not in str(error):
            sys.exit(f"the error does not name the extra {extra}: {error}")
with tempfile.TemporaryDirectory() as folder, mr.open(f"{folder}/mill", create=True) as ws:
    ws.journals.create("n", pa.schema([("n", pa.int64())]))
    rows = pa.table({"n": [1, 2]})
    ws.journals.append("n", rows)
    if sum(batch.num_rows for batch in ws.journals.read("n", 0).batches) != rows.num_rows:
        sys.exit("a journal gives other rows than it got")
if "connect" in given:
    print(mr.functions.upper("name"))
print(f"extras: {', '.join(sorted(given)) or 'none'}; journals work, errors name other extras")
