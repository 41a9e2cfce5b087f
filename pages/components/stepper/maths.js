// Equations, set by the very KaTeX that Streamlit ships and has styles for, and sentences in pieces. What KaTeX makes
// is built anew here, of elements and attributes that can do nothing, so that no text becomes markup.

const SPACES = { svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };
const words = (text) => text.trim().split(/\s+/);
const TAGS = new Set(words(`span svg path line math semantics annotation mrow mi mo mn ms mtext mspace msup msub msubsup
  mfrac msqrt mroot mover munder munderover mtable mtr mtd mstyle mpadded mphantom menclose`));
const RENAMED = { className: "class", ariaHidden: "aria-hidden" };
const KEPT = new Set(words(`class aria-hidden style title d viewBox preserveAspectRatio width height x1 x2 y1 y2
  stroke-width mathvariant displaystyle scriptlevel stretchy fence separator accent accentunder lspace rspace minsize
  maxsize columnalign columnspacing rowspacing encoding notation linethickness`));
const MOST_KEPT = 4000; // equations that are remembered

let plugin;
let loading;
const set = new Map();

/** Loads KaTeX from its place under the app's own address, once; without one LaTeX is shown as it is. */
function loadMaths(place) {
  const come = (module) => (plugin = module.default());
  return (loading ??= place ? import(new URL(place, document.baseURI).href).then(come, () => {}) : Promise.resolve());
}

function built(node, space) {
  if (node.type === "text") return document.createTextNode(node.value);
  if (node.type !== "element" || !TAGS.has(node.tagName)) return document.createTextNode("");
  const within = SPACES[node.tagName] ?? (node.tagName === "span" ? undefined : space);
  const made = within ? document.createElementNS(within, node.tagName) : document.createElement(node.tagName);
  for (const [name, value] of Object.entries(node.properties ?? {})) {
    const called = RENAMED[name] ?? name;
    if (KEPT.has(called)) made.setAttribute(called, Array.isArray(value) ? value.join(" ") : value);
  }
  made.append(...node.children.map((child) => built(child, within)));
  return made;
}

/** An equation as an element; `display` sets it by itself and not in a line. */
function maths(latex, display = false) {
  const key = `${display}${latex}`;
  if (!plugin || !latex) return element("code", "", latex ?? "");
  if (!set.has(key)) {
    const text = { type: "text", value: latex };
    const className = ["language-math", display ? "math-display" : "math-inline"];
    const tree = { type: "root", children: [{ type: "element", tagName: "code", properties: { className }, children: [text] }] };
    plugin(tree, { message() {} });
    if (set.size > MOST_KEPT) set.clear();
    set.set(key, element("span", "", ...tree.children.map((child) => built(child))));
  }
  return set.get(key).cloneNode(true);
}

/** A sentence in pieces, [kind, text] each, as nodes. */
function sentence(pieces) {
  return (pieces || []).map(([kind, text]) => {
    if (kind === "maths") return maths(text);
    if (kind === "text") return document.createTextNode(text);
    return element(kind === "bold" ? "strong" : "code", "", text);
  });
}

/** Puts a sentence into a paragraph, which is not there without one. */
function say(paragraph, pieces) {
  const nodes = typeof pieces === "string" ? [document.createTextNode(pieces)].filter((node) => node.data) : sentence(pieces);
  paragraph.hidden = nodes.length === 0;
  paragraph.replaceChildren(...nodes);
}

const SMALLEST = 0.6; // of the size of an equation that has the room

/** Sets a long equation smaller, so that it fits its line. One that is still too long scrolls, and shows that it goes on. */
function fitLine(line) {
  const fits = shrink(line, SMALLEST, (share) => line.style.setProperty("--share", share));
  const more = () => line.scrollWidth - line.clientWidth - line.scrollLeft > 1;
  line.tabIndex = fits ? -1 : 0; // it scrolls by keyboard too
  line.classList.toggle("cut", more());
  handle(line, "scroll", () => line.classList.toggle("cut", more()));
}
