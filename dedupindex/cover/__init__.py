"""Find the documents of a collection that others can replace, by a user's definition of redundancy.

Documents (`load_documents`) and a coverage relation (`relation`) make pairs (`pairs`), pairs make
connected components (`components`), and each component gets a least set of documents that covers
the others (`set_cover`); `find_cover.run` does all of it. After "User-Defined Redundancy in Web
Archives" (Pehlivan, Saad, Gançarski). Nothing is ever deleted.
"""
