"""Ablations of dB: which sentences they need, which cells there are, and dB in each of them.

`sentences` collects every sentence once, `instructions` draws anchors from Alpaca and Tulu, `table`
reads the collection back, `cells` lists the cells, `compute` finds B of every group in each.
"""
