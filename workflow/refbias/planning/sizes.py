"""How large models, adapters and their training are."""

from pathlib import Path
from typing import Any

from refbias.artifacts import read_json
from refbias.config.finetune import FullRegime
from refbias.config.memory import bytes_per_parameter
from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.errors import UserError
from refbias.planning.facts import KNOWN_SHAPES, Shape

BF16, FP32 = 2, 4


def shape_of(source: HubSource | LocalSource | GgufPackageSource) -> Shape:
    """Return a model's dimensions, from the table of known models or its ``config.json``.

    Raises
    ------
    UserError
        For a hub model that the table does not know, or a directory without dimensions.
    """
    if isinstance(source, LocalSource):
        return shape_from_config(read_json(Path(source.path) / "config.json"), source.path)
    name = source.package if isinstance(source, GgufPackageSource) else source.id
    if name not in KNOWN_SHAPES:
        raise UserError(
            f"{name}: its size is not known offline: download it and give it as `source: {{kind: local, path: ...}}`; "
            f"known are {', '.join(KNOWN_SHAPES)}"
        )
    return KNOWN_SHAPES[name]


def shape_from_config(config: dict[str, Any], where: str) -> Shape:
    """Return the dimensions that a ``config.json`` states, of the language tower of a multimodal one.

    Raises
    ------
    UserError
        If a dimension is missing.
    """
    text = config.get("text_config", config)
    try:
        heads, width = int(text["num_attention_heads"]), int(text["hidden_size"])
        head = int(text.get("head_dim") or width // heads)
        gemma = str(text.get("model_type", "")).startswith("gemma3")
        return Shape(
            vocabulary=int(text["vocab_size"]),
            width=width,
            layers=int(text["num_hidden_layers"]),
            feed_forward=int(text["intermediate_size"]),
            query_width=heads * head,
            key_width=int(text.get("num_key_value_heads") or heads) * head,
            tied=bool(text.get("tie_word_embeddings", gemma)),
            norms=4 if gemma else 2,
            head_norm=head if gemma else 0,
        )
    except KeyError as error:
        raise UserError(f"{where}: config.json has no {error.args[0]}: name a directory of a decoder") from None


def parameters(shape: Shape) -> int:
    """Return the number of weights of the language tower."""
    linear = 2 * shape.width * shape.query_width + 2 * shape.width * shape.key_width
    linear += 3 * shape.width * shape.feed_forward
    layer = linear + shape.norms * shape.width + 2 * shape.head_norm
    embeddings = shape.vocabulary * shape.width * (1 if shape.tied else 2)
    return embeddings + shape.layers * layer + shape.width


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Return the weights of a LoRA adapter on all seven linear layers of a block: r (inputs + outputs) each."""
    sides = 2 * (shape.width + shape.query_width) + 2 * (shape.width + shape.key_width)
    sides += 3 * (shape.width + shape.feed_forward)
    return rank * shape.layers * sides


def training_bytes(regime: FullRegime) -> float:
    """Return bytes a parameter on each card in full fine-tuning, see `refbias.config.memory`."""
    return bytes_per_parameter(regime)[0]
