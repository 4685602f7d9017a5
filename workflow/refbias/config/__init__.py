"""Validated configuration: one strict pydantic model a stage, `refbias.config.root.Config` over all.

Each stage's settings live in a module of their own, so that a change of one stage's options is
no change of another stage's code.
"""
