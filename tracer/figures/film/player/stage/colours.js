// Colours by theme, and the scale of the stream. Attention is amber everywhere, and nothing else is.

import { maximum } from "../../../scripts/heatmap.js";

const THEMES = {
  dark: {
    name: "dark",
    low: [26, 38, 66], high: [150, 214, 255], empty: "rgb(255 255 255 / 0.07)", ink: "#eef2f8", soft: "#8fa0b8",
    line: "rgb(255 255 255 / 0.22)", thread: [255, 176, 0], mlp: [206, 150, 255], focus: "#ffffff", gate: "rgb(255 176 0 / 0.14)",
    paper: "#0b0f18", plain: [74, 76, 80],
  },
  light: {
    name: "light",
    low: [214, 225, 240], high: [10, 66, 134], empty: "rgb(10 20 40 / 0.06)", ink: "#101828", soft: "#55627a",
    line: "rgb(10 20 40 / 0.28)", thread: [184, 127, 0], mlp: [124, 58, 190], focus: "#101828", gate: "rgb(255 176 0 / 0.18)",
    paper: "#fbfcfe", plain: [200, 200, 200],
  },
};

// The theme that an element stands in, by the colour of its text.
export function themeOf(root) {
  const [red, green, blue] = (getComputedStyle(root).color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
  return THEMES[red + green + blue > 384 ? "dark" : "light"];
}

export const rgb = (colour, alpha = 1) => `rgb(${colour.map(Math.round).join(" ")} / ${alpha})`;

// A share of 0 to 1 on the scale of the stream: one hue, from the colour of the page to the one farthest from it.
export const shade = (theme, share) => theme.low.map((low, i) => low + (theme.high[i] - low) * share);

// Whether a snapshot has a measure: likeness needs the lane that is read, and change a vector before.
export const measured = (snapshot, name) => Boolean(snapshot?.[name]?.some(Number.isFinite));

// What the lanes can be coloured by: the share on the scale for each lane of a snapshot, NaN where there is none.
// The lengths of vectors stand in where a snapshot lacks the measure `instead`.
export function measure(film, stream, name, instead = null) {
  const own = film.snapshots.filter((snapshot) => snapshot.stream === stream && snapshot[name] && !(instead && measured(snapshot, instead)));
  const read = name === "like" ? film.streams[stream].read : null; // it is like itself, which would stretch the scale
  const values = own
    .flatMap((snapshot) => [...snapshot[name]].filter((_, lane) => lane !== read))
    .filter((value) => Number.isFinite(value));
  if (!values.length) return null;
  if (name !== "change") {
    const least = values.reduce((a, b) => Math.min(a, b));
    const most = values.reduce((a, b) => Math.max(a, b));
    return { least, most, share: (value) => Math.max(0, (value - least) / (most - least || 1)) };
  }
  const positive = values.filter((value) => value > 0);
  const least = positive.reduce((a, b) => Math.min(a, b), Infinity);
  const most = maximum(positive);
  const span = Math.log(most / least) || 1;
  return { least, most, share: (value) => Math.max(0, Math.log(value / least) / span) };
}
