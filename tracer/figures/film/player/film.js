// What a film holds, and the rows of its attention.

import { imageAddress, unpack } from "../../scripts/envelope.js";
import { meanOf } from "../../scripts/heatmap.js";

// The film in a message's bytes.
export function readFilm(bytes) {
  const film = unpack(bytes);
  for (const stream of film.streams) {
    stream.lanes = stream.lanes.map(([name, mark, patch, word]) => ({ name, mark, patch, word }));
  }
  for (const look of [...film.looks, ...film.streams.flatMap(({ rollout }) => rollout ?? [])]) {
    look.keys ??= look.slots;
    look.queries ??= [...look.slots.keys()];
  }
  if (film.photo) film.photo.uri = imageAddress(film.photo.image);
  return film;
}

// The views of a look that a choice of a head stands for: one, or all of which it is the mean.
export function viewsOf({ weights }, head) {
  const [count] = weights.shape;
  return head >= 0 && head < count ? [head] : [...Array(count).keys()];
}

// The weights of one lane's token in a look, by the lane of `source` that they are of, or null without such a row. `head` is the number of
// a view, or -1 for the mean of all.
export function rowOf(look, source, lane, head) {
  const query = look.queries.indexOf(look.slots.indexOf(lane));
  if (query < 0) return null;
  const keys = look.keys.length;
  const row = meanOf(look.weights, viewsOf(look, head), look.queries.length * keys, query * keys, keys);
  const out = new Float32Array(source.lanes.length);
  row.forEach((weight, key) => (out[look.keys[key]] += weight));
  return out;
}

const KINDS = ["", "nothing", "alone", "even"];

// What is special about the row of one lane's token: "nothing" where every weight is 0, "alone" where every weight but one
// is, "even" where all that are open are the same; "" for any other row. It is told from the weights before they are rounded.
export function kindOf(look, lane, head) {
  const view = head >= 0 && head < look.weights.shape[0] ? head : look.kinds.length - 1; // the last is the mean
  return KINDS[look.kinds[view][look.queries.indexOf(look.slots.indexOf(lane))] ?? 0];
}
