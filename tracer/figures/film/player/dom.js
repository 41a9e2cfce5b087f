// What elements and the page tell, for the film's player and for the components of a page.

/** Hears events of a target, by their names. Returns what stops it. */
export function hear(target, handlers, capture = false) {
  const each = Object.entries(handlers);
  for (const [name, handler] of each) target.addEventListener(name, handler, capture);
  return () => each.forEach(([name, handler]) => target.removeEventListener(name, handler, capture));
}
