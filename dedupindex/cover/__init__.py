"""What the rest of a collection can be replaced by, where "redundant" is what somebody says it is.

Documents (`document`) and a coverage relation (`relation`) make pairs (`pairs`), these connected
components (`components`), and each of these a least set of documents that covers the others
(`solving`); `run` does it all. After "User-Defined Redundancy in Web Archives" (Pehlivan, Saad,
Gançarski, or UD in our docs); nothing here ever deletes anything.
"""
