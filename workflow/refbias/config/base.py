"""Strict pydantic base and the translation of its errors into one line for the user."""

import difflib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from refbias.errors import UserError

ModelT = TypeVar("ModelT", bound=BaseModel)

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
"""A name that is safe in a path: lower-case letters, digits, dot and hyphen."""


def refuse_half(value: Any) -> Any:
    """Raise for half precision, which no setting may name."""
    if value in ("float16", "fp16", "half"):
        raise ValueError("float16 overflows to NaN in Gemma 3: use bfloat16 or float32")
    return value


Dtype = Annotated[typing.Literal["float32", "bfloat16"], BeforeValidator(refuse_half)]
Device = typing.Literal["auto", "cpu", "cuda", "mps"]


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models that an annotation may hold, through containers and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.GenericAlias) or typing.get_args(annotation):
        return [model for part in typing.get_args(annotation) for model in models_in(part)]
    return []


def _tagged(model: type[BaseModel], tag: str) -> bool:
    """Tell whether a discriminated union knows `model` by `tag`."""
    kind = model.model_fields.get("kind")
    return kind is not None and tag in typing.get_args(kind.annotation)


def _locate(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, list[str]]:
    """Return the dotted key at `location`, without union tags, and the keys valid beside it."""
    current, path, below_dict = [model], [], False
    for part in location[:-1]:
        name = str(part)
        # a key of a dict may spell a union's tag
        if not below_dict and (tagged := [candidate for candidate in current if _tagged(candidate, name)]):
            current = tagged
            continue
        path.append(name)
        fields = [candidate.model_fields[name] for candidate in current if name in candidate.model_fields]
        below_dict = any(typing.get_origin(field.annotation) is dict for field in fields)
        if fields:
            current = [nested for field in fields for nested in models_in(field.annotation)]
    path.extend(str(part) for part in location[-1:])
    return ".".join(path) or "(top level)", sorted({name for candidate in current for name in candidate.model_fields})


def _message(model: type[BaseModel], error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    key, valid = _locate(model, first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), valid, n=1, cutoff=0.0)
        return f"{where}: unknown key {key!r}: did you mean {near[0]!r}?" if near else f"{where}: unknown key {key!r}"
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{where}: key {key!r} is missing"
    if first["type"] == "union_tag_not_found":
        return f"{where}: key '{key}.kind' is missing"
    given = first.get("input")
    # a whole section says nothing that the message does not
    got = "" if isinstance(given, Mapping | BaseModel) else f" (got {given!r})"
    return f"{where}: key {key!r}: {text}{got}".replace("\n", " ")


def parse(model: type[ModelT], data: Any, where: str) -> ModelT:
    """Validate `data` as `model`.

    Parameters
    ----------
    model
        A pydantic model.
    data
        A mapping, as read from YAML or JSON.
    where
        What the data is called in an error: a file or an option.

    Raises
    ------
    UserError
        One line naming the key, and for an unknown key the nearest valid one.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: must hold a mapping of keys to values, not {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError(_message(model, error, where)) from None


def parse_json(model: type[ModelT], text: str, where: str) -> ModelT:
    """Validate JSON text as `model`; see `parse`."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{where}: not JSON that is read here: {' '.join(str(error).split())[:100]}") from None
    return parse(model, data, where)


def read_yaml(path: Path | str) -> Any:
    """Read a YAML file.

    Raises
    ------
    UserError
        One line naming the file, the line, and what is wrong.
    """
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a YAML file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'not UTF-8'}") from None
    except (RecursionError, ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # the library's own, at a date that is none, a tag that does not fit, brackets a thousand deep
        raise UserError(f"{path}: not YAML that is read here: {' '.join(str(error).split())[:100]}") from None
