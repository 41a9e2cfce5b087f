// The film on paper: twelve frames on sheets, or the beat that is on screen; each sheet with the model, the photo and
// the address.

import { fit } from "./captions.js";
import { element, hear, makeCanvas } from "../../scripts/dom.js";

const FRAMES = 12;
const SHEET = 6; // frames on a sheet of paper
const PICTURE = [680, 560]; // pixels of the film while its frames are drawn, whatever the screen is
const WIDE = 330; // pixels of a frame on paper
const HIGH = 940; // pixels of a sheet at most, which Letter and A4 have inside usual margins

// The beats of the frames, chosen evenly: the first and the last are always among them.
function printedBeats(count) {
  const frames = Math.min(FRAMES, count);
  return [...Array(frames).keys()].map((frame) => Math.round((frame * (count - 1)) / Math.max(1, frames - 1)));
}

// A copy of what a canvas or an image shows, which is there at once.
function copyOf(source, width, height) {
  const copy = makeCanvas(width, height);
  copy.getContext("2d").drawImage(source, 0, 0, width, height);
  return copy;
}

// The stage as it stands, with the answer on it.
function stageCopy(stage, wide) {
  const canvas = stage.querySelector("canvas");
  const copy = element("div", "stage");
  const drawn = copyOf(canvas, canvas.width, canvas.height);
  copy.append(drawn, stage.querySelector(".answer").cloneNode(true));
  Object.assign(copy.style, { width: `${stage.clientWidth}px`, height: `${stage.clientHeight}px`, zoom: wide / stage.clientWidth });
  return copy;
}

function frameOf(beat, number, stage, wide) {
  const frame = element("article", "frame");
  const [equation, shape, proof] = [element("div", "equation"), element("div", "shape"), element("p", "proof", beat.proof)];
  equation.innerHTML = beat.equation; // MathML of the library's own printer
  shape.innerHTML = beat.shape;
  proof.dataset.verdict = beat.verdict;
  frame.append(stageCopy(stage, wide), element("h2", "title", number ? `${number}. ${beat.title}` : beat.title), element("p", "sentence", beat.sentence), equation, shape, proof);
  return frame;
}

function sheetHead(film, photo, address) {
  const head = element("div", "head");
  if (photo?.ready) {
    const scale = 56 / Math.max(photo.image.naturalWidth, photo.image.naturalHeight);
    head.append(copyOf(photo.image, photo.image.naturalWidth, photo.image.naturalHeight));
    Object.assign(head.firstChild.style, { width: `${photo.image.naturalWidth * scale}px`, height: `${photo.image.naturalHeight * scale}px` });
  }
  const words = element("p", "");
  words.append(element("b", "", film.model), element("span", "", [film.weights, film.proofs].filter(Boolean).join(". ")), element("span", "address", address));
  head.append(words);
  return head;
}

// Puts the sheets into an element before it is printed, and takes them away after it. `show` draws a beat in the size
// and the theme of paper, `back` as it was. `at` returns the one beat that is printed, null where it is the film.
// Returns what stops it.
export function printing(root, film, photo, { show, back, at }) {
  const remove = () => root.querySelector(".sheets")?.remove();
  const before = () => {
    remove();
    const stage = root.querySelector(".stage");
    const alone = at() !== null;
    const beats = alone ? [at()] : printedBeats(film.beats.length);
    Object.assign(root.style, { width: `${PICTURE[0]}px`, height: `${PICTURE[1]}px`, minHeight: 0, maxHeight: "none", transition: "none" });
    const frames = beats.map((at) => {
      show(at);
      return frameOf(film.beats[at], alone ? 0 : at + 1, stage, alone ? PICTURE[0] : WIDE);
    });
    Object.assign(root.style, { width: "", height: "", minHeight: "", maxHeight: "" });
    back();
    root.style.transition = "";
    const sheets = element("div", "sheets");
    for (let start = 0; start < frames.length; start += SHEET) {
      const sheet = element("section", alone ? "sheet alone" : "sheet");
      const grid = element("div", "grid");
      grid.append(...frames.slice(start, start + SHEET));
      sheet.append(sheetHead(film, photo, location.href), grid);
      sheets.append(sheet);
    }
    root.append(sheets);
    for (const line of sheets.querySelectorAll(".equation, .shape")) fit(line);
    for (const sheet of sheets.children) sheet.style.zoom = Math.min(1, HIGH / sheet.offsetHeight);
  };
  return hear(window, { beforeprint: before, afterprint: remove });
}
