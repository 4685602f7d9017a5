"""Embeddings of models that never are in memory as a whole: one decoder layer at a time, any number of merges."""

from refbias.stream.forward import StreamResult, can_stream, stream_embeddings
from refbias.stream.shards import open_weights
from refbias.stream.variants import Part, Variant, between, single

__all__ = ["Part", "StreamResult", "Variant", "between", "can_stream", "open_weights", "single", "stream_embeddings"]
