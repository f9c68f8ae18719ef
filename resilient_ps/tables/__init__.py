"""Tables on a shard: specifications, kernels, dense and sparse storage, optimisers."""
