"""The command line: one module a stage, found by name in `refbias.cli.main`.

This package imports none of them, so that a stage's code hash covers that stage alone.
"""
