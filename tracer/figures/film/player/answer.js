// The answer: bars, tokens or a picture, as elements that any reader of the page can read.

import { layBar, setBar } from "../../scripts/bars.js";

// Builds the answer within `root`; the result fills it from 0 to 1 within a box.
export function answerView(root, answer) {
  const list = root.querySelector(".bars");
  const image = root.querySelector("img");
  const tokens = root.querySelector(".tokens");
  root.hidden = !answer;
  list.replaceChildren();
  if (!answer) return () => {};
  const rows = answer.bars.map((bar) => {
    const row = layBar(0, bar.text, bar.name);
    row.className = bar.rank === 0 ? "bar first" : "bar";
    if (bar.colour) row.querySelector(".fill").style.setProperty("--fill", bar.colour);
    list.append(row);
    return { row, value: row.querySelector(".value"), bar };
  });
  image.hidden = !answer.image;
  if (answer.image) Object.assign(image, { src: answer.image, alt: answer.label });
  tokens.hidden = !answer.tokens;
  if (answer.tokens) tokens.textContent = answer.tokens.join(answer.tokens.every((token) => [...token].length === 1) ? "" : " ");
  let fitted = "";
  return (shown, box, visible) => {
    const size = `${Math.round(box.w)} ${Math.round(box.h)}`;
    if (size !== fitted) {
      fitted = size;
      Object.assign(root.style, { left: `${box.x}px`, top: `${box.y}px`, width: `${box.w}px`, height: `${box.h}px` });
      const picture = answer.image ? Math.min(box.w, 0.55 * box.h) + 10 : 0;
      image.style.width = `${Math.max(0, picture - 10)}px`;
      const count = Math.max(1, Math.floor((box.h - picture) / 34));
      for (const { row, bar } of rows) row.hidden = bar.rank >= count;
    }
    root.style.opacity = visible;
    root.classList.toggle("done", shown >= 1);
    root.setAttribute("aria-hidden", String(shown < 1));
    for (const { row, value, bar } of rows) {
      setBar(row, bar.share * shown);
      value.style.opacity = shown;
    }
    image.style.opacity = shown;
    tokens.style.clipPath = `inset(0 0 ${100 * (1 - shown)}% 0)`;
  };
}
