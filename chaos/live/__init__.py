"""Faults on real processes, and what becomes of the cluster meanwhile."""
