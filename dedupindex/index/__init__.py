"""The index: which captures are originals, found by digest, URL and urlkey."""
