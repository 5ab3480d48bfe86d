"""Manifests for Kubernetes, as the docs have them and as spark-submit renders them.

They are compared with the official schemas; no cluster runs them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.kubernetes.kubernetes_kit import ROOT, api_server, check_manifests, submit

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def documented_options() -> list[str]:
    """The options of the command in the docs, and what follows them."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    section = page.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]
    found = re.search(r"```\n(spark-submit .*?)\n```", section, re.DOTALL)
    assert found is not None, "docs/deploy.md has a command for Kubernetes"
    words = found[1].replace("\\\n", " ").split()
    return words[words.index("cluster") + 1 :]


def test_the_example_is_valid() -> None:
    check_manifests(ROOT / "examples" / "kubernetes" / "millrace.yaml")


def test_what_spark_submit_makes_of_the_documented_command_is_valid(tmp_path: Path) -> None:
    with api_server() as (address, given):
        submit(address, documented_options())

    for number, made in enumerate(given):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(made), encoding="utf-8")
        check_manifests(path)
    kinds = [made["kind"] for made in given]
    assert sorted(kinds) == ["ConfigMap", "NetworkPolicy", "Pod", "Service"]
    pod = given[kinds.index("Pod")]["spec"]
    container = pod["containers"][0]
    claims = [each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["volumes"]]
    assert "mill" in claims
    assert "/mill" in [mount["mountPath"] for mount in container["volumeMounts"]]
    token = next(each for each in container["env"] if each["name"] == "MILLRACE_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "millrace", "key": "token"}
    policy = given[kinds.index("NetworkPolicy")]["spec"]
    assert policy["podSelector"]["matchLabels"]["spark-role"] == "executor", "as the docs say"
