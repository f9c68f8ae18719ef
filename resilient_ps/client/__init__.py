"""The user's side: connect to a cluster, read tables, train as a worker."""
