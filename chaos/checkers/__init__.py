"""Checkers: what a history of a run says about a promise."""
