// Shares as bars.

import { element } from "./dom.js";

/** A row of a list: a name, which may have several parts, a text, and a bar that is as long as the share. */
export function layBar(share, text, ...name) {
  const track = element("span", "track", element("i", "fill"));
  const row = element("li", "", element("span", "name", ...name), " ", element("b", "value", text), track);
  setBar(row, share);
  return row;
}

/** Sets the bar of a row to another share; the style sheet makes `.fill` as long as `--share` says. */
export const setBar = (row, share) => row.style.setProperty("--share", share);
