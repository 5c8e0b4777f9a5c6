"""A second opinion on archives: reads afresh what others wrote, with none of their code.

Only the standard library and `errors` are used here, so that a defect of our reader or writer
cannot hide itself (pyproject.toml holds this as a contract). Nothing is ever changed.
"""
