"""The output-level benchmarks behind one interface.

To add one: write a module that ends in a `Benchmark` object and add its line below.
"""

from refbias.benchmarks import decodingtrust, toxigen, wildguardmix
from refbias.benchmarks.base import Benchmark, Message, Prompt, PromptSet, PromptSettings, Sampling

BENCHMARKS: dict[str, Benchmark] = {
    "wildguardmix": wildguardmix.BENCHMARK,
    "decodingtrust": decodingtrust.BENCHMARK,
    "toxigen": toxigen.BENCHMARK,
}

__all__ = ["BENCHMARKS", "Benchmark", "Message", "Prompt", "PromptSet", "PromptSettings", "Sampling"]
