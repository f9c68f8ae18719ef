"""`resilient-ps simulate --compiled`: the machines and their world as machine code.

The sources of the package are copied, rewritten so that mypyc compiles them well (`rewriting`),
compiled once per version into the user's cache folder (`building`), and the command runs again with
that folder in front of the package (`starting`). The sources themselves know nothing of it.
"""
