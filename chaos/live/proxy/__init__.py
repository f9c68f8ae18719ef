"""The proxy between all parties of a cluster: a process of its own, told what to do by `network`.

Dialled parties have a listener each. What passes is cut, delayed, lost or thinned out by rules that
can change at any time, for living connections too. No rights are needed, and no change of programs.
"""
