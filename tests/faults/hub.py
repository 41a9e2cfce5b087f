"""A model hub on this machine, with one small checkpoint: the part of the real one that its client requests."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class Hub:
    """A server of `model` from a folder while it is entered; with `cut`, files of weights end in the middle."""

    model = "somebody/small-bert"

    def __init__(self, folder: Path):
        self.folder, self.cut = folder, False

    def __enter__(self) -> Hub:
        from tracer import zoo

        transformers = zoo.source_of("hf:bert")[0].import_transformers()
        sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}
        transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=2_000)).save_pretrained(self.folder)
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                file = hub.folder / self.path.split("?")[0].rpartition("/")[2]
                if f"{hub.model}/resolve/" not in self.path or not file.is_file():
                    self.send_response(404)
                    self.send_header("X-Error-Code", "EntryNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data = file.read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                self.send_header("X-Repo-Commit", "0" * 40)
                self.end_headers()
                if body:
                    short = hub.cut and file.suffix == ".safetensors"
                    self.wfile.write(data[: len(data) // 2] if short else data)
                if body and hub.cut:
                    self.close_connection = True

            def log_message(self, *words) -> None:
                """Log nothing: the driver prints the observations."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def environment(self) -> dict[str, str | None]:
        """Return the variables that lead the hub's client here."""
        address = f"http://127.0.0.1:{self.server.server_port}"
        return {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": None, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
