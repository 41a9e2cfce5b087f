"""Sound: generated here or from a WAV file, as frames of a spectrogram and as codes of a codebook."""

from typing import TYPE_CHECKING

import streamlit as st

from pages.jobs.single_flight import chart
from pages.sections import tokenization
from pages.ui import texts, widgets
from tracer.figures import media
from tracer.inputs import audio
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent

if TYPE_CHECKING:
    from tracer.lessons.tokenization import sound
else:  # imported when first used
    sound = lazy_import("tracer.lessons.tokenization.sound")


TITLE = "Sound"
ICON = ":material/graphic_eq:"
ORDER = 4
WAYS = {"frames": "Frames of a spectrogram", "codes": "Codes"}


class SoundInput:
    """A sound `[M]`, which owns the results computed from it."""

    def __init__(self, numbers):
        self.numbers = numbers


SYNTHETIC_INPUTS = {name: SoundInput(make()) for name, make in audio.SYNTHETIC_SOUNDS.items()}
UPLOAD_KEY = "sound of one’s own"
"""Where a session keeps the sound that the visitor gave, or why it was refused, with the number of its file."""


def show() -> None:
    """Draw the sound, its spectrogram beside its reconstruction from codes, and the steps of the chosen
    tokenization."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = widgets.segments("Sound", "sound", SYNTHETIC_INPUTS, format_func=str.capitalize)
        own = _own()
        way = tokenization.way("sound")
        rows = widgets.segments("Rows of the codebook, V", "V", sound.ROWS, 32)
    sound_input = own or SYNTHETIC_INPUTS[name]
    if own:
        st.caption("The sound is your file, which a link cannot contain. Remove it to return to the built-in sounds.")
    st.audio(audio.to_wav(sound_input.numbers), format="audio/wav")
    logs, ids = sound.spectrogram(sound_input.numbers), sound.codes(sound_input.numbers, rows)
    count = len(logs)
    chosen = tokenization.place("Token", count, count // 3)
    book, at = sound.codebook(rows), (sound.WINDOW, sound.HOP, chosen)
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"**Frames**: token {chosen + 1} of n = {count} is a column of {logs.shape[1]} numbers.")
        alt = f"The wave and the spectrogram of the sound, {count} frames"
        chart(sound_input, ("frames", chosen), lambda: media.draw_spectrogram(sound_input.numbers, logs, *at), alt=alt)
    with right:
        st.markdown(f"**Codes**: token {chosen + 1} is the id **{ids[chosen]}** of V = {rows}.")
        alt = f"The codes of the {count} frames, and the rows of the codebook that they stand for"
        chart(sound_input, ("codes", rows, chosen), lambda: media.draw_sound_codes(ids, book[ids], rows, *at), alt=alt)
    st.code(" ".join(map(str, ids)), language=None, wrap_lines=True)
    lost = ((logs - book[ids]) ** 2).sum() / ((logs - logs.mean()) ** 2).sum()
    used = len(set(ids.tolist()))
    st.markdown(
        f"The codes keep {percent(1 - lost, 0)} of the variance of the spectrogram, in {count} numbers instead of "
        f"{logs.size:,}; {used} of the {rows} rows are used."
    )
    makes = {
        "frames": lambda: sound.trace_frames(sound_input.numbers),
        "codes": lambda: sound.trace_codes(sound_input.numbers, rows),
    }
    tokenization.show_run(sound_input, ("sound", way, rows * (way == "codes")), makes[way], sound.SLIPS)


def _own() -> SoundInput | None:
    """Return the visitor's sound; None where there is none, or it was refused with a message."""
    with st.popover("Your own", icon=":material/upload:"):
        most = audio.MAX_BYTES >> 20
        file = st.file_uploader(f"A WAV file of up to {audio.MAX_SECONDS:g} seconds", type="wav", max_upload_size=most)
    if file is None:
        st.session_state.pop(UPLOAD_KEY, None)
        return None
    if (known := st.session_state.get(UPLOAD_KEY)) is None or known[0] != file.file_id:
        try:
            known = file.file_id, SoundInput(audio.open_sound(file.getvalue()))
        except ValueError as error:
            known = file.file_id, str(error)
        st.session_state[UPLOAD_KEY] = known
    if isinstance(known[1], str):
        st.warning(texts.escape(f"{known[1]}."))
        return None
    return known[1]
