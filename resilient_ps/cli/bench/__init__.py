"""`resilient-ps bench`: our push and pull beside the raw limits of the same machine."""
