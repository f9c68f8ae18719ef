"""The command line: results on standard output, logs and progress on standard error.

Exit codes: 0 done, 1 a verdict was negative, 2 the call was wrong, 3 something could not be reached
or did not answer in time (trying again may help), 4 this process was superseded, 70 a bug, 130
interrupted.
"""
