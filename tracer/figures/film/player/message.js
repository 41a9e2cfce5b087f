// The message of a film: a header in JSON, and numbers in half precision behind it.

import { allHalves, headed } from "./bytes.js";

export const decode = (text) => Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));

// The film in a message's bytes: the header, with its places replaced by the numbers there.
export function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [film, start] = headed(bytes);
  const halves = allHalves();
  const read = (at, count) => Float32Array.from({ length: count }, (_, i) => halves[view.getUint16(start + 2 * (at + i), true)]);
  for (const snapshot of film.snapshots) {
    const lanes = film.streams[snapshot.stream].lanes.length;
    for (const name of ["present", "change", "like", "length", "attention", "mlp"]) {
      if (snapshot[name] !== null) snapshot[name] = read(snapshot[name], lanes);
    }
  }
  if (film.input) film.input.cells = read(film.input.at, film.input.shape[0] * film.input.shape[1]);
  for (const look of film.looks) {
    look.weights = read(look.at, look.views * look.queries.length * look.keys.length);
  }
  for (const { rollout } of film.streams) {
    if (rollout) rollout.weights = read(rollout.at, rollout.queries.length * rollout.keys.length);
  }
  for (const picture of film.pictures ?? []) {
    const at = start + 2 * picture.at;
    picture.cells = bytes.subarray(at, at + picture.heads * picture.shape[0] * picture.shape[1]);
  }
  for (const stream of film.streams) {
    stream.lanes = stream.lanes.map(([name, mark, patch, word]) => ({ name, mark, patch, word }));
  }
  return film;
}

// The weights of one lane's token in a look, by the lane of `source` that they are of, or null without such a row. `head` is the number of
// a view, or -1 for the mean of all.
export function rowOf(look, source, lane, head) {
  const query = look.queries.indexOf(look.slots.indexOf(lane));
  if (query < 0) return null;
  const keys = look.keys.length;
  const out = new Float32Array(source.lanes.length);
  const views = head >= 0 && head < look.views ? [head] : [...Array(look.views).keys()];
  for (const view of views) {
    const from = (view * look.queries.length + query) * keys;
    for (let key = 0; key < keys; key++) out[look.keys[key]] += look.weights[from + key] / views.length;
  }
  return out;
}

const KINDS = ["", "nothing", "alone", "even"];

// What is special about the row of one lane's token: "nothing" where every weight is 0, "alone" where every weight but one
// is, "even" where all that are open are the same; "" for any other row. It is told from the weights before they are rounded.
export function kindOf(look, lane, head) {
  const view = head >= 0 && head < look.views ? head : look.kinds.length - 1; // the last is the mean
  return KINDS[look.kinds[view][look.queries.indexOf(look.slots.indexOf(lane))] ?? 0];
}
