"""The pages for people: plain HTML over the same index, readable without script.

URLs and other values come from the web, so pages show them as text only: escaped (`escape`), under
a policy that allows no script or style but our own files (`blueprint`), and never as links.
"""
