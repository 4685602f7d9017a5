"""Occupational competence: whether a model holds an irrelevant attribute against a user, and whether it shows.

The third lens (after Fuentes and Mueller, arXiv 2608.20347): an expertise direction and its score in the hidden states,
the reading level of answers and a hiring decision as behaviour, paired statistics, and a verdict per attribute.
"""
