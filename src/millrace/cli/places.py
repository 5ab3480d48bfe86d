"""How commands take a workspace: a folder that is there, or a part of a bucket."""

from __future__ import annotations

import os
from typing import Any

import click

from millrace.shuffle.object_address import is_url


class WorkspacePath(click.Path):
    """A folder, or a url such as s3://bucket/prefix."""

    name = "workspace"

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as the library's
        """Leave a url as it is; see that a folder is there."""
        text = os.fspath(value)
        return text if is_url(text) else super().convert(value, param, ctx)
