"""`resilient-ps checkpoint`: a cluster's checkpoints, with it or in the store alone."""
