"""Faults on real processes as data: what there is, what a seed draws, what came of each."""
