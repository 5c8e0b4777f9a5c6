"""The HTTP server: a Flask application over the library, which never needs it."""
