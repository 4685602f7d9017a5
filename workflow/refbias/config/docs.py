"""Documentation of every configuration key, generated from the models."""

import json
import typing
from types import NoneType

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from refbias.config.base import models_in
from refbias.config.root import Config


def _type_name(annotation: object) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(annotation))
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
            annotation.__name__, annotation.__name__
        )
    parts = [part for part in typing.get_args(annotation) if part is not NoneType]
    origin = typing.get_origin(annotation)
    if origin is list:
        return f"list of {_type_name(parts[0])}"
    if origin is dict:
        return f"mapping of {_type_name(parts[0])} to {_type_name(parts[1])}"
    if origin is typing.Annotated:
        return _type_name(parts[0])
    return " or ".join(_type_name(part) for part in parts) if parts else str(annotation)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "empty"
    return f"`{json.dumps(field.default)}`"


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        nested = models_in(field.annotation)
        key = f"{prefix}{name}"
        if not nested:
            text = (field.description or "").replace("|", "\\|").replace("\n", " ")
            rows.append(f"| `{key}` | {_type_name(field.annotation)} | {_default(field)} | {text} |")
            continue
        inner = f"{key}.<slug>." if typing.get_origin(field.annotation) is dict else f"{key}."
        for candidate in nested:
            suffix = f" ({candidate.__name__})" if len(nested) > 1 else ""
            rows.append(f"| **`{inner.rstrip('.')}`**{suffix} | | | {field.description or ''} |")
            rows.extend(_rows(candidate, inner))
    return rows


def markdown() -> str:
    """Return a Markdown table of every key, its type, default and meaning."""
    head = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *_rows(Config, "")])
