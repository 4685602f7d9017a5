"""Occupational competence: what a model holds of a user's ability, and which attributes move it.

`data` reads what is shown to the model, `direction` finds the expertise direction, `scores` reads it at the last token
of the user's own words, `steering` moves the states along it; reading level, hiring and verdicts stand beside them.
"""
