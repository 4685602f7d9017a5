"""Which of nine topics a prompt is about: names, rules on words, a language model, a frozen file.

The file is what the benchmark reads; `rules` and `llm` are two ways to make one.
"""

from refbias.topics.names import NO_TOPIC, TOPICS, fold

__all__ = ["NO_TOPIC", "TOPICS", "fold"]
