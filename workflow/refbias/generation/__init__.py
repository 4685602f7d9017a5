"""Generation of responses: token ids in, text out, the same whatever the batch.

A backend is a module with a function ``generate``; `refbias.generation.hf` runs a transformers
model in this process.
"""

from refbias.generation.base import Output, Request

__all__ = ["Output", "Request"]
