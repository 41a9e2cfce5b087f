// The scrubber: a button for each beat; where there is no room, the blocks of a stack share one.

import { element, handle, makeButton } from "../../scripts/dom.js";

const ROOM = 30; // pixels that a button takes at least, with its gap
const NAME = 60; // pixels that the name of the beat that is shown takes besides
const FEWEST = 3; // blocks that are worth a button of their own together

const LETTER = /^\p{L}[\p{M}′]*$/u; // the symbol of a tensor; large, since accents are all that tells some apart

// The beats in groups: each alone, or the consecutive blocks of a stream together.
function groups(beats, folded) {
  const out = [];
  beats.forEach((beat, at) => {
    const last = out.at(-1);
    const joins = folded && beat.number && last?.number && last.stream === beat.stream;
    if (joins) last.beats.push(at);
    else out.push({ number: beat.number, stream: beat.stream, label: beat.label, beats: [at] });
  });
  return out.flatMap((group) => {
    if (group.beats.length >= FEWEST) return [{ ...group, label: `1–${beats[group.beats.at(-1)].number}` }];
    return group.beats.map((at) => ({ ...group, label: beats[at].label, beats: [at] }));
  });
}

// `go` is called with a beat. Left and Right move among the buttons with the film, so it is one stop of the Tab key.
export function scrubber(root, film, go) {
  let [shown, width, current] = [[], 0, -1];
  // Where there are more buttons than are in view: those fade at that end.
  const fade = () => {
    root.toggleAttribute("data-before", root.scrollLeft > 1);
    root.toggleAttribute("data-after", root.scrollLeft + root.clientWidth < root.scrollWidth - 1);
  };
  handle(root, "scroll", fade);
  function build() {
    const room = root.clientWidth;
    if (!room || room === width) return;
    width = room;
    shown = groups(film.beats, film.beats.length * ROOM + NAME > room);
    root.replaceChildren(
      ...shown.map((group) => {
        const turn = () => {
          const inside = group.beats.indexOf(current);
          go(group.beats[inside >= 0 ? (inside + 1) % last : 0]);
        };
        const button = makeButton(turn, "", element("span", "", group.label));
        button.toggleAttribute("data-short", group.label.length < 4);
        button.toggleAttribute("data-letter", LETTER.test(group.label));
        const [first, last] = [film.beats[group.beats[0]], group.beats.length];
        const name = last > 1 ? `Blocks ${group.label}` : first.number ? `Block ${first.number}${first.kind === "cross" ? ", across" : ""}` : first.label;
        button.setAttribute("aria-label", name);
        button.title = last > 1 ? name : first.title;
        return button;
      }),
    );
    root.classList.toggle("tight", room / shown.length < 68);
    root.classList.toggle("tiny", shown.length * ROOM + NAME > room);
    mark(current);
  }
  function mark(at) {
    current = at;
    shown.forEach((group, place) => {
      const button = root.children[place];
      const here = group.beats.includes(at);
      button.toggleAttribute("data-done", group.beats.at(-1) < at);
      button.tabIndex = here ? 0 : -1;
      if (here) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
      const inside = group.beats.indexOf(at) + 1;
      button.style.setProperty("--part", here ? inside / group.beats.length : 0);
      if (group.beats.length > 1) button.firstChild.textContent = here ? `${inside}/${group.beats.length}` : group.label;
      if (here && root.contains(document.activeElement)) button.focus({ preventScroll: true });
      if (here && root.scrollWidth > root.clientWidth) root.scrollLeft = button.offsetLeft + button.offsetWidth / 2 - root.clientWidth / 2;
    });
    fade();
  }
  return { build, mark };
}
