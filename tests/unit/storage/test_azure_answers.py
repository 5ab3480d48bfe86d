"""What answers of Azure's Blob Storage mean: folders, and copies that go on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.storage.objects.azure_api import AzureApi
from millrace.storage.objects.rest_requests import RestAnswer

API = AzureApi("c", "/account", "http://127.0.0.1:1", sas="?sig=secret")


def answer(headers: Mapping[str, str] | None = None, body: str = "") -> RestAnswer:
    return RestAnswer(status=200, headers=headers or {}, body=body.encode(), was_repeated=False)


def blob(name: str, properties: str = "", metadata: str = "") -> str:
    known = (
        "<Content-Length>3</Content-Length><Etag>0x1</Etag>"
        "<Last-Modified>Thu, 19 Nov 2026 04:00:00 GMT</Last-Modified>"
    )
    return (
        f"<Blob><Name>{name}</Name><Properties>{known}{properties}</Properties>"
        f"<Metadata>{metadata}</Metadata></Blob>"
    )


def test_folders_are_no_files_however_they_are_marked() -> None:
    blobs = (
        blob("in/a.parquet"),
        blob("in/of-a-namespace", properties="<ResourceType>directory</ResourceType>"),
        blob("in/of-hadoop", metadata="<hdi_isfolder>true</hdi_isfolder>"),
        blob("in/b.parquet", metadata="<hdi_isfolder>false</hdi_isfolder>"),
    )
    page = f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs></EnumerationResults>"

    listed = API.listed(answer(body=page))

    assert [facts.key for facts in listed.objects] == ["in/a.parquet", "in/b.parquet"]


def test_a_listing_asks_for_what_marks_folders() -> None:
    asked = API.page("in/", deep=True, most=None, after=None, next_page=None)
    assert asked.query["include"] == "metadata"


def test_the_source_of_a_copy_is_named_with_what_may_read_it() -> None:
    asked = API.copy("a b", "to", None)
    assert asked is not None
    assert asked.path == "/account/c/to"
    source = asked.headers["x-ms-copy-source"]
    assert source == "http://127.0.0.1:1/account/c/a%20b?sig=secret"


def test_a_copy_that_goes_on_is_asked_about_until_it_ends() -> None:
    look = API.copy("from", "to", answer({"x-ms-copy-status": "pending"}))
    assert look is not None
    assert (look.method, look.path) == ("HEAD", "/account/c/to")
    assert API.copy("from", "to", answer({"x-ms-copy-status": "success"})) is None
    with pytest.raises(ValueError, match="aborted"):
        API.copy("from", "to", answer({"x-ms-copy-status": "aborted"}))
