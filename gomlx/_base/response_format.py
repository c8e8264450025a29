"""OpenAI's response_format as options of generate()."""
from __future__ import annotations

from typing import Any


def options_of(asked: Any) -> dict[str, Any]:
    """{"schema": ...} of {"type": "json_schema", "json_schema": {"schema": ...}}, or with the schema beside the type as
    `text.format` of /v1/responses has it; {} of "text". ValueError for anything else."""
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"schema": {"type": "object"}}
    if kind != "json_schema":
        raise ValueError(f"response_format: expected the type text, json_object or json_schema, got {kind!r:.80}")
    inner = asked.get("json_schema", asked)
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict | bool):
        raise ValueError('response_format: json_schema: expected {"name": ..., "schema": {...}}')
    return {"schema": inner["schema"]}
