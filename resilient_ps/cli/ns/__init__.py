"""`resilient-ps ns`: namespaces, and the graphs of tasks between them."""
