// What a pointer on the stage means: a patch, a word, a lane, a row of the matrix; and swipes.

import { cellAt } from "../../../scripts/cells.js";
import { hear } from "../../../scripts/dom.js";
import { laneAt } from "./layout.js";

const SWIPE = 50;

const inside = (box, x, y) => box && x >= box.x && y >= box.y && x < box.x + box.w && y < box.y + box.h;

// The stream and the lane at a point of the stage, or null.
export function pointed(film, place, chips, look, x, y) {
  const streamOf = (test) => {
    for (const [stream, { lanes }] of film.streams.entries()) {
      const lane = lanes.findIndex(test);
      if (lane >= 0) return { stream, lane };
    }
    return null;
  };
  for (const { box, rows } of place.boxes ?? []) {
    if (rows && inside(box, x, y)) return { stream: 0, lane: film.slots[cellAt([x, y], box, rows, 1)[0]] };
  }
  if (inside(place.photo, x, y)) {
    const { rows, columns } = film.photo;
    const [row, column] = cellAt([x, y], place.photo, rows, columns);
    return streamOf((lane) => lane.patch === row * columns + column);
  }
  for (const [stream, own] of chips.entries()) {
    const chip = own.find((one) => inside(one, x, y));
    if (chip) return { stream, lane: chip.lane };
  }
  if (look && inside(place.matrix, x, y)) {
    const [query] = cellAt([x, y], place.matrix, look.queries.length, look.keys.length);
    return { stream: look.stream, lane: look.slots[look.queries[query]] };
  }
  for (const flow of place.streams) {
    const end = flow.segments.at(-1)?.to ?? flow.x + flow.thumb;
    const lane = x <= end ? laneAt(flow, x, y) : null;
    if (lane !== null) return { stream: flow.index, lane };
  }
  return null;
}

// Pointing changes what is looked at while it lasts, a click keeps it; a swipe goes to the next beat. Returns what stops it.
export function listen(canvas, { at, look, keep, step }) {
  let [startX, startY, swiped] = [0, 0, false];
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return at(event.clientX - box.left, event.clientY - box.top);
  };
  const handlers = {
    pointermove: (event) => {
      if (event.pointerType === "mouse") look(point(event));
    },
    pointerleave: () => look(null),
    pointerdown: (event) => {
      [startX, startY, swiped] = [event.clientX, event.clientY, false];
    },
    pointerup: (event) => {
      const [dx, dy] = [event.clientX - startX, event.clientY - startY];
      swiped = event.pointerType !== "mouse" && Math.abs(dx) > SWIPE && Math.abs(dx) > 1.5 * Math.abs(dy);
      if (swiped) step(dx < 0 ? 1 : -1);
      else if (Math.hypot(dx, dy) < 12) keep(point(event));
    },
  };
  return hear(canvas, handlers);
}
