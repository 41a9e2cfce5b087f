"""List of what the server still holds of a visitor's photo once the visitor has left. Run alone, by
`tests/security/test_forgotten.py`: a server fills its process.

Prints what is held while the visitor is there and after the session ended, as JSON.
"""

import gc
import json
import threading
import time
import weakref
from io import BytesIO

import numpy as np
import uvicorn
from PIL import Image

import app
from pages.server import app_factory, prewarm, websockets
from tests.hosted.visitor import Visitor
from tests.support.serving import free_port
from tracer.inputs import images
from tracer.record import Trace

SIZE = (97, 61)  # of no other picture in the process


def photo() -> bytes:
    pixels = np.random.default_rng(7).integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def strings() -> set:
    """Yield every text and every byte string that an object holds and that may be a picture."""
    found = set()
    for holder in gc.get_objects():
        for value in gc.get_referents(holder):
            if isinstance(value, (str, bytes)) and len(value) > 2_000:
                found.add(value)
    return found


def count_held(marker: bytes, before: set, seen: list) -> dict[str, int]:
    """Count the held parts of the photo: its file, its pixels, pictures of it that were sent to a page, and runs on
    it."""
    gc.collect()
    tracked = gc.get_objects()
    arrays = [thing for thing in tracked if isinstance(thing, Image.Image) and thing.size == SIZE]
    runs = [thing for thing in tracked if isinstance(thing, Trace) and _shows(thing)]
    del tracked
    new = strings() - before
    return {
        "files": sum(isinstance(value, bytes) and marker in value for value in new),
        "pictures": sum("data:image" in value if isinstance(value, str) else b"data:image" in value for value in new),
        "photos": sum(one() is not None for one in seen) + len(arrays),
        "runs": len(runs),
    }


def _shows(run: Trace) -> bool:
    return run.picture is not None and tuple(run.values[run.picture.value].shape[:2]) == SIZE[::-1]


def main() -> None:
    port, seen, opened = free_port(), [], images.open_photo

    def remember_photo(data: bytes) -> Image.Image:
        made = opened(data)
        if made.size == SIZE:
            seen.append(weakref.ref(made))
        return made

    images.open_photo = remember_photo
    websockets.KEEP = 1
    app_factory.SWEEP = 0.2
    serving = uvicorn.Server(uvicorn.Config(app.app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=serving.run, daemon=True)
    thread.start()
    while not serving.started or not prewarm.ready.is_set():
        time.sleep(0.1)

    address, marker = f"http://127.0.0.1:{port}", photo()[500:600]
    Visitor(address).open().close()  # what the pages of a sample make, and keep for all
    gc.collect()
    before = strings()
    visitor = Visitor(address).open()
    visitor.give("mine.png", photo())
    there = count_held(marker, before, seen)
    visitor.close()
    deadline = time.monotonic() + 30
    while any((gone := count_held(marker, before, seen)).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    print(json.dumps({"said": visitor.says("Your photo: mine.png"), "there": there, "gone": gone}))
    serving.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
