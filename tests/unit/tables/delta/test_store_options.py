"""delta-rs is told of the same server, and of nothing that it would not follow."""

from __future__ import annotations

import pytest

from millrace.config import Config
from millrace.errors import UserError
from millrace.storage.storage_options import storage_options
from millrace.tables.delta.log_folder import table_folder
from millrace.tables.delta.store_options import delta_options

HERE = "http://127.0.0.1:1"


def options_of(uri: str, **given: str) -> dict[str, str]:
    options = storage_options(given)
    return delta_options(table_folder(uri, options, Config()), options)


def test_a_server_of_googles_kind_is_the_one_that_is_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = options_of("gs://bucket/t", endpoint_url=HERE, anonymous="true")
    wanted = {"google_base_url": HERE, "google_skip_signature": "true", "allow_http": "true"}
    assert found == wanted

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", HERE)
    assert options_of("gs://bucket/t") == wanted


def test_a_token_that_delta_rs_would_not_use_is_refused() -> None:
    with pytest.raises(UserError, match="a token cannot be used to write") as refused:
        options_of("gs://bucket/t", google_access_token="secret-token")  # noqa: S106 - no secret
    assert "secret-token" not in str(refused.value)
