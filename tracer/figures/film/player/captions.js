// The texts of a beat: title, sentence, equation, shape and proof.

import { shrink } from "../../scripts/equation.js";

// Sizes the equation down until it fits on its line; where it would be too small, each of its parts gets a line.
export function fit(node) {
  node.style.fontSize = "";
  const full = parseFloat(getComputedStyle(node).fontSize);
  const set = (share) => {
    node.style.fontSize = share < 1 ? `${share * full}px` : "";
  };
  node.classList.remove("broken");
  if (shrink(node, 0.5, set)) return;
  node.classList.add("broken");
  shrink(node, 0.3, set);
}

// The height of an element by its style, where that gives one.
const heightOf = (node) => parseFloat(getComputedStyle(node).maxHeight) || Infinity;

// Sizes a tall equation down until all that stands with it has room.
function fitTall(node, around, frame) {
  const left = () => frame.getBoundingClientRect().bottom - around.getBoundingClientRect().bottom;
  for (let size = parseFloat(getComputedStyle(node).fontSize); size > 8 && left() < 0; size -= 1) {
    node.style.fontSize = `${size - 1}px`;
  }
}

// Sizes the words down until they stand in the height that there is.
function fitWords(node) {
  node.style.setProperty("--words", 1);
  for (let scale = 1; scale > 0.6 && node.scrollHeight > Math.min(node.parentElement.clientHeight, heightOf(node)); scale -= 0.04) {
    node.style.setProperty("--words", scale - 0.04);
  }
}

export function captionView(root) {
  const find = (name) => root.querySelector(name);
  const show = (beat) => {
    find(".title").textContent = beat.title;
    find(".sentence").textContent = beat.sentence;
    find(".equation").innerHTML = beat.equation; // MathML of the library's own printer
    find(".shape").innerHTML = beat.shape;
    find(".proof").textContent = beat.proof;
    find(".proof").dataset.verdict = beat.verdict;
    sized();
  };
  const sized = () => {
    fit(find(".equation"));
    fit(find(".shape"));
    fitWords(find(".words"));
    fitTall(find(".equation"), find(".maths"), find(".caption"));
  };
  return { show, fit: sized };
}
