"""The stand-ins speak the wire formats that the providers' own clients speak."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.testing.paid_models.provider_clients import python_with_clients

from millrace.testing.paid_models.batch_desk import BatchPlan
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels

OPENAI = """
import json, sys
import openai
from pydantic import BaseModel

client = openai.OpenAI(api_key="sk", base_url=sys.argv[1] + "/v1", max_retries=0)
asked = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "a question"}]}
said = client.chat.completions.create(**asked)

class Review(BaseModel):
    label: str
    score: float

parsed = client.chat.completions.parse(**asked, response_format=Review).choices[0].message.parsed
pieces, usage = [], None
for event in client.chat.completions.create(
    **asked, stream=True, stream_options={"include_usage": True}
):
    pieces += [choice.delta.content or "" for choice in event.choices]
    usage = event.usage or usage
vectors = client.embeddings.create(
    model="text-embedding-3-small", input=["a", "b"], encoding_format="float"
)
lines = [
    {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": asked}
    for n in range(40)
]
content = "\\n".join(map(json.dumps, lines)).encode()
file = client.files.create(file=("requests.jsonl", content), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    metadata={"key": "7"},
)
batch = client.batches.retrieve(batch.id)
results = [json.loads(line) for line in client.files.content(batch.output_file_id).iter_lines()]
late = [json.loads(line) for line in client.files.content(batch.error_file_id).iter_lines()]
try:
    client.batches.retrieve("batch_unknown")
except openai.NotFoundError as error:
    unknown = error.status_code
print(json.dumps({
    "text": said.choices[0].message.content,
    "tokens": said.usage.total_tokens,
    "parsed": parsed.label,
    "streamed": "".join(pieces),
    "streamed_tokens": usage.total_tokens,
    "vectors": [len(each.embedding) for each in vectors.data],
    "status": batch.status,
    "metadata": batch.metadata,
    "counts": [batch.request_counts.total, batch.request_counts.completed],
    "results": len(results),
    "late": len(late),
    "listed": [each.id for each in client.batches.list(limit=1)],
    "unknown": unknown,
}))
"""
ANTHROPIC = """
import json, sys, warnings
import anthropic

warnings.simplefilter("ignore")
client = anthropic.Anthropic(api_key="sk", base_url=sys.argv[1], max_retries=0)
asked = {
    "model": "claude-haiku-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "a question"}],
}
said = client.messages.create(**asked, system="be brief")
tool = {
    "name": "answer",
    "input_schema": {"type": "object", "properties": {"label": {"type": "string"}}},
}
called = client.messages.create(
    **asked, tools=[tool], tool_choice={"type": "tool", "name": "answer"}
)
with client.messages.stream(**asked) as stream:
    streamed = "".join(stream.text_stream)
    last = stream.get_final_message()
requests = [{"custom_id": f"r{n}", "params": asked} for n in range(40)]
batch = client.messages.batches.create(requests=requests)
batch = client.messages.batches.retrieve(batch.id)
results = [(each.custom_id, each.result.type) for each in client.messages.batches.results(batch.id)]
print(json.dumps({
    "text": said.content[0].text,
    "tokens": said.usage.input_tokens + said.usage.output_tokens,
    "called": called.content[0].input["label"],
    "stop": called.stop_reason,
    "streamed": streamed,
    "streamed_tokens": last.usage.output_tokens,
    "status": batch.processing_status,
    "counts": [batch.request_counts.succeeded, batch.request_counts.expired],
    "kinds": sorted({kind for _, kind in results}),
    "results": len(results),
    "listed": [each.id for each in client.messages.batches.list(limit=1)],
}))
"""


def asked_by(client: str, folder: Path) -> dict[str, Any]:
    """What a client of a provider got from the stand-in."""
    with PaidModels(folder / "invoice.log", plans=lambda _: BatchPlan(expires=0.5)) as service:
        done = subprocess.run(
            [python_with_clients(), "-c", client, service.anthropic_url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_openais_client_understands_every_answer(tmp_path: Path) -> None:
    got = asked_by(OPENAI, tmp_path)

    assert got["text"] == got["streamed"] == "about a question"
    assert got["tokens"] == got["streamed_tokens"] > 0
    assert got["parsed"] == "about a question"
    assert got["vectors"] == [8, 8]
    assert (got["status"], got["metadata"]) == ("expired", {"key": "7"})
    assert got["counts"] == [40, got["results"]]
    assert got["results"] + got["late"] == 40
    assert 0 < got["late"] < 40
    assert got["listed"] == ["batch_000000"]
    assert got["unknown"] == 404
    kinds = [charge.kind for charge in charges(tmp_path / "invoice.log")]
    assert kinds == ["chat"] * 3 + ["embeddings"] + ["batch"] * got["results"]


@pytest.mark.slow
def test_anthropics_client_understands_every_answer(tmp_path: Path) -> None:
    got = asked_by(ANTHROPIC, tmp_path)

    assert got["text"] == got["streamed"] == "about a question"
    assert got["tokens"] > got["streamed_tokens"] > 0
    assert (got["called"], got["stop"]) == ("about a question", "tool_use")
    assert got["status"] == "ended"
    assert sum(got["counts"]) == got["results"] == 40
    assert got["kinds"] == ["expired", "succeeded"]
    assert got["listed"] == ["msgbatch_000000"]
