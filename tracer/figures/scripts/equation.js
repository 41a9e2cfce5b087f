// Equations in the room that there is.

const TRIES = 4;

/** Sets a line smaller until it fits: `set` takes a share of its full size, from 1 down to `least`. Tells whether it
 *  fits. */
export function shrink(line, least, set) {
  const fits = () => line.scrollWidth <= line.clientWidth;
  let share = 1;
  set(share);
  for (let tries = 0; tries < TRIES && share > least && !fits(); tries++) {
    share = Math.max(least, (share * (line.clientWidth - 1)) / line.scrollWidth);
    set(share);
  }
  return fits();
}
