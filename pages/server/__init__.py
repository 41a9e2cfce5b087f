"""Web server around the pages: middleware, sockets, uploads and logs."""
