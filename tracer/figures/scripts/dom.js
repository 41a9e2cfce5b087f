// What elements and the page tell, for the film's player and for the components of a page.

/** Hears events of a target, by their names. Returns what stops it. */
export function hear(target, handlers, capture = false) {
  const each = Object.entries(handlers);
  for (const [name, handler] of each) target.addEventListener(name, handler, capture);
  return () => each.forEach(([name, handler]) => target.removeEventListener(name, handler, capture));
}

/** Answers events of a node, by their names, in place of what answered them before. What `act` returns cancels
 *  nothing. */
export function handle(node, names, act) {
  for (const name of names.split(" ")) {
    node[`on${name}`] = (event) => {
      act(event);
    };
  }
}

/** An element with a class, if any, and what is in it. */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** A button that calls `act` when it is pressed. */
export function makeButton(act, className, ...children) {
  const made = Object.assign(element("button", className, ...children), { type: "button" });
  handle(made, "click", act);
  return made;
}

/** A canvas of so many pixels. */
export const makeCanvas = (width, height) => Object.assign(document.createElement("canvas"), { width, height });

/** A radio button with its text, which calls `pick` when it is chosen. */
export function makeRadio(name, value, text, checked, pick) {
  const input = Object.assign(document.createElement("input"), { type: "radio", name, value, checked });
  handle(input, "change", pick);
  return element("label", "", input, element("span", "", text));
}

/** An SVG element, with attributes and what is in it. */
export function shape(name, facts, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
