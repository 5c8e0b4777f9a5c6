"""Write the originals of an index in formats that crawlers read themselves."""
