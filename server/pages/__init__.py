"""The page for people: plain HTML over the same index, readable without script.

What is shown came from the web, so it is text and nothing else: escaped wherever it is written
(`text`), with no script or style but our own files (`headers`), and never a link to its origin.
"""
