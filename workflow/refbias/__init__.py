"""refbias: reference-based auditing of what fine-tuning did to a language model's biases.

The package compares a fine-tuned model with the model it came from in the space of
similarities to anchor sentences (relative representations) and reports, per target group,
how far it moved towards negative attributes: the Representational Bias Shift dB.

Importing ``refbias`` loads no deep-learning library.
"""

__version__ = "0.1.0"
