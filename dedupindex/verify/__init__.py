"""Check archives with a second, independent reader.

Only `errors`, `counts` and the process pool are shared with the rest of the package, so that a
defect of its readers and writers cannot hide itself (a contract in pyproject.toml). Only reads.
"""
