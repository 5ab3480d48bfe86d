"""Packages that only some features need, and the extra of Millrace that brings each of them.

A managed runtime brings its own PySpark, so no install of Millrace replaces it unless it is asked
for by an extra.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from millrace.errors import UserError

EXTRAS: Final = {
    "spark": ("pyspark", "pandas"),
    "connect": ("pyspark", "pandas", "grpc", "grpc_status", "google.rpc"),
    "delta": ("deltalake",),
    "airflow": ("airflow",),
    "dagster": ("dagster",),
    "kafka": ("confluent_kafka",),
    "postgres": ("psycopg", "adbc_driver_postgresql"),
    "s3": ("botocore",),
    "gcs": ("google.auth", "urllib3"),
    "azure": ("azure.identity", "urllib3"),
    "ui": ("jinja2", "markupsafe", "prometheus_client", "starlette", "uvicorn"),
    "iceberg": ("pyiceberg", "pyiceberg_core"),
    "llm": ("httpx",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Each extra, and the modules that it brings."""


def missing_modules(extra: str) -> list[str]:
    """The modules of an extra that are not installed here."""
    return [name for name in EXTRAS[extra] if not _is_there(name)]


def check_extra(extra: str, what: str) -> None:
    """Raise if a module that something needs is missing; the error names the extra."""
    missing = missing_modules(extra)
    if missing:
        raise UserError(
            f"{what} needs packages that are not installed here\n"
            f"  found: no {', '.join(missing)}\n  to fix: pip install 'millrace[{extra}]'"
        )


def import_for(module: str, extra: str, what: str) -> ModuleType:
    """A module that needs an extra; the error names it where the module cannot be loaded."""
    check_extra(extra, what)
    try:
        return import_module(module)
    except ImportError as error:  # Versions that do not fit each other.
        raise UserError(
            f"{what} needs packages that do not fit those installed here\n"
            f"  found: {str(error).splitlines()[0]}\n  to fix: pip install 'millrace[{extra}]'"
        ) from error


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # No package above it, or one that was put aside.
        return False
