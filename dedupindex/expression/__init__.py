"""A small, safe language for conditions on metadata: ``status == 200 and timestamp >= '2020'``.

Text becomes a typed tree (`parser`), which is evaluated on values (`evaluate`) or handed to DuckDB
(`sql`), with the same result. There are no variables, loops or calls but those that the vocabulary
of the caller names, so an expression of somebody else does no harm.

A comparison with something that is missing is false, and ``!=`` is the opposite of ``==``, as
``not`` is of whatever follows it: nothing is ever unknown.
"""
