"""Addresses of clusters, names of workspaces in them, and settings that users give."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config import Config
from millrace.errors import StorageError, UserError
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.kafka_client import KafkaAddress


def test_an_address_has_hosts_and_maybe_a_name() -> None:
    assert KafkaAddress.parse("kafka://a:1") == KafkaAddress("a:1")
    assert KafkaAddress.parse("kafka://a:1,b.c:2/mill-1") == KafkaAddress("a:1,b.c:2", "mill-1")
    for bad in ("kafka://", "kafka://a", "a:1", "kafka://a:1/", "kafka://a:1/b/c", "kafka://a:1,"):
        with pytest.raises(UserError, match="is no address of a Kafka cluster"):
            KafkaAddress.parse(bad)


def test_a_workspace_keeps_its_name(tmp_path: Path) -> None:
    first = kafka_client.name_in(str(tmp_path))

    assert kafka_client.name_in(str(tmp_path)) == first
    assert [each.name for each in tmp_path.iterdir()] == ["kafka.name"]
    (tmp_path / "kafka.name").write_text("a b")
    with pytest.raises(UserError, match="holds no name: 'a b'"):
        kafka_client.name_in(str(tmp_path))


def test_settings_of_a_file_reach_every_client_and_do_not_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings"
    path.write_text("# secret\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b\nacks=0\n")
    monkeypatch.setenv("MILLRACE_KAFKA_SETTINGS", str(path))
    config = Config()
    producing = kafka_client.producing("a:1", "id", config)

    for settings in (producing, kafka_client.consuming("a:1", "g", config)):
        assert settings["security.protocol"] == "SASL_SSL"
        assert settings["sasl.password"] == "a=b"
        assert settings["bootstrap.servers"] == "a:1"
    assert producing["acks"] == "all"
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match="has a line 'nonsense'"):
        kafka_client.producing("a:1", "id", config)
    path.unlink()
    with pytest.raises(StorageError, match="MILLRACE_KAFKA_SETTINGS"):
        kafka_client.producing("a:1", "id", config)
