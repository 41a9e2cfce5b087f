// A drawing that Python made as SVG: read by a parser that runs nothing, and built anew of shapes and words alone.

const SHAPES = new Set(["svg", "rect", "text", "tspan"]);
const STROKES = new Set(words(`class viewBox role aria-label style x y dy width height fill fill-opacity stroke stroke-width
  font-size font-family font-weight font-style text-anchor dominant-baseline`));

function rebuilt(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (!SHAPES.has(node.localName)) return document.createTextNode("");
  const made = document.createElementNS(SPACES.svg, node.localName);
  for (const { name, value } of node.attributes) if (STROKES.has(name)) made.setAttribute(name, value);
  made.append(...[...node.childNodes].map(rebuilt));
  return made;
}

/** The drawing as an element. */
const drawn = (markup) => rebuilt(new DOMParser().parseFromString(markup, "image/svg+xml").documentElement);
