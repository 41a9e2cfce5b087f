// On a phone, the sections of a note are folded at first. Back finds them as they were left.

const narrow = matchMedia("(max-width: 640px)");
const sections = () => [...document.querySelectorAll(".st-key-statements details")];
const WAIT = 100; // milliseconds until sections are looked for again: they may be drawn anew

function set(section, open) {
  if (section.open !== open) section.querySelector("summary").click();
}

/** Folds the sections that were not seen before, as soon as all of them are there. */
function fold({ owner, count }) {
  const known = sections();
  if (known.length !== count) return;
  const unfolded = history.state?.unfolded ?? [];
  known.forEach((section, at) => {
    if (section.dataset.owner === owner) return;
    section.dataset.owner = owner;
    if (narrow.matches && count > 1) set(section, unfolded.includes(at));
  });
}

function remember(event) {
  const at = sections().indexOf(event.target.closest?.("details"));
  if (at < 0 || !event.isTrusted || !event.target.closest("summary")) return;
  setTimeout(() => {
    const unfolded = sections().flatMap((section, place) => (section.open ? [place] : []));
    history.replaceState({ ...history.state, unfolded }, "");
  }, WAIT);
}

/** Unfolds the section that a mark leads to. */
function led(event) {
  const heading = document.getElementById(event.target.closest?.(".verdicts a")?.hash.slice(1));
  const section = heading && sections().find((one) => heading.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
  if (section) set(section, true);
}

function widened() {
  if (!narrow.matches) sections().forEach((section) => set(section, true));
}

export default function ({ data }) {
  fold(data);
  const again = setInterval(fold, WAIT, data);
  const stops = [hear(document, { click: remember }), hear(document, { click: led }), hear(narrow, { change: widened })];
  return () => {
    clearInterval(again);
    stops.forEach((stop) => stop());
  };
}
