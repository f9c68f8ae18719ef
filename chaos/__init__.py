"""Faults, simulation and the checkers that judge a run."""
