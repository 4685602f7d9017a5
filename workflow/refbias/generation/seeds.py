"""The seed of one response's random stream, the same in every backend."""

import hashlib


def item_seed(seed: int, benchmark: str, prompt_id: str, sample: int) -> int:
    """Return the seed of one response's random stream: 53 bits, exact in any reader of JSON."""
    key = "\0".join((str(seed), benchmark, prompt_id, str(sample)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 11
