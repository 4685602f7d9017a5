"""The audit: any two checkpoints, whatever form they come in, compared on the same sentences.

`sources` turns what a user names into folders of weights, `stimuli` chooses the sentences, `run` embeds
both models (the reference from `cache` where it can), and `result` holds the two against each other.
"""
