"""Speed of what refbias does most, as ratios measured in one run: ``python -m bench``."""
