"""The web server around the pages: middleware, sockets, uploads and logs."""
