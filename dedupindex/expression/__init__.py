"""A small, safe language for conditions on metadata: ``status == 200 and timestamp >= '2020'``.

`parser` turns text into a typed tree, which `evaluate` evaluates in Python or translates into SQL.
There are no variables, loops or calls except the names of the caller's vocabulary, so expressions
from strangers do no harm. There is no "unknown": a comparison with a missing value is false, and
``!=`` and ``not`` are true exactly where ``==`` and the condition are false.
"""
