"""How responses are generated: the backend, its engine and its interpreter."""

from typing import Any, Literal

from pydantic import Field

from refbias.config.base import Dtype, Strict

Backend = Literal["hf", "vllm"]

INTERPRETERS: dict[str, str | None] = {"hf": None, "vllm": ".venv-vllm/bin/python"}
"""Interpreter that a backend needs where none is configured; None: the workflow's own."""


class VllmSettings(Strict):
    """The vLLM engine, started once a checkpoint."""

    dtype: Dtype | None = Field(default=None, description="Number type of the engine; empty = `compute.dtype`.")
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that one checkpoint is spread over.")
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="Share of a GPU's memory for weights, keys and values."
    )
    kv_cache_gb: float | None = Field(
        default=None,
        gt=0,
        description="Memory for keys and values in GB; empty = what is left on a GPU, 4 on a CPU.",
    )
    max_model_len: int | None = Field(
        default=None, ge=2, description="Tokens of prompt and response at most; empty = what the benchmarks need."
    )
    enforce_eager: bool = Field(default=False, description="No compilation: starts sooner, generates more slowly.")


class GenerationSettings(Strict):
    """How responses are generated."""

    backend: Backend = Field(default="hf", description="`hf`: transformers; `vllm`: vLLM (`make env-vllm`).")
    interpreter: str | None = Field(
        default=None,
        description="Python that generates; empty = the workflow's own for hf, `.venv-vllm/bin/python` for vllm.",
    )
    batch_size: int = Field(default=64, ge=1, description="Responses decoded together.")
    part_size: int = Field(
        default=2000, ge=1, description="Responses of a finished part; a killed job goes on after its last one."
    )
    vllm: VllmSettings = Field(default=VllmSettings(), description="The vLLM engine.")

    def python(self) -> str | None:
        """Return the interpreter that generates; None: the workflow's own."""
        return self.interpreter or INTERPRETERS[self.backend]

    def gpus(self) -> int:
        """Return how many GPUs a job takes."""
        return self.vllm.tensor_parallel_size if self.backend == "vllm" else 1

    def outcome(self) -> dict[str, Any]:
        """Return what responses depend on (JSON values): no interpreter's place, no engine that is not used."""
        data = self.model_dump(mode="json", exclude={"interpreter"})
        if self.backend != "vllm":
            del data["vllm"]
        return data
