"""Fixed scenarios, each of which provokes what one protection of the servers is there for.

With all protections on, every promise holds in it. Without the one that it is named after, the
checker that watches over the promise has to find it broken: a check that never fails proves
nothing. Nothing is left to chance but what the machine does.
"""
