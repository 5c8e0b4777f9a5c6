"""The searchable engine: pure Python, on Whoosh."""
