"""Run a factory of one file in a process of its own: `python -m tracer.zoo.run_own_file FOLDER FACTORY`.

The file is `FOLDER/my_code.py`. The folder then holds `run.safetensors`, the run, or `why.json`: why it fails, or in
one sentence why it was refused. A process of its own can be ended, and what the code does to Python stays in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tracer.diagnostics.failures import explain
from tracer.zoo.user_factory import OwnCodeError, trace

MODULE, RUN, WHY = "my_code", "run.safetensors", "why.json"


def main(folder: Path, name: str) -> None:
    """Run the factory of that name, and write its outcome."""
    sys.path[:0] = [str(folder), str(Path.cwd())]
    try:
        run = trace(f"{MODULE}:{name}")
        run.save(folder / RUN)
        return
    except OwnCodeError as error:
        answer = explain(error).plain()
    except (ValueError, OSError, MemoryError) as error:
        answer = {"refusal": " ".join(str(error).split()) or type(error).__name__}
    (folder / WHY).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
