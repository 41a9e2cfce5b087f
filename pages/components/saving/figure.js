// A figure of the page as one SVG: its canvases and photos as pictures in it, its drawings as they are, and every word at
// its place, so that what is saved is what is seen, axes and scales included.

const SVG = "http://www.w3.org/2000/svg";
const LOOK = `fill fill-opacity stroke stroke-opacity stroke-width stroke-dasharray opacity font-family font-size font-weight
  font-style text-anchor dominant-baseline visibility display`.trim().split(/\s+/);
const MARGIN = 12; // pixels around it: ticks reach out of their boxes
const CLEAR = /^rgba\(\d+, \d+, \d+, 0\)$|^transparent$/;

/** What a figure of that box is, as an SVG element of its size. */
function figureOf(box) {
  const frame = box.getBoundingClientRect();
  frame.x -= MARGIN;
  frame.y -= MARGIN;
  const within = (area) => ({ x: area.left - frame.left, y: area.top - frame.top, width: area.width, height: area.height });
  const [measure, definitions] = [element("canvas").getContext("2d"), shape("defs", {})];
  const size = { width: Math.ceil(frame.width) + 2 * MARGIN, height: Math.ceil(frame.height) + 2 * MARGIN };
  const ground = getComputedStyle(document.querySelector(".stApp") ?? document.body).backgroundColor;
  const whole = shape("svg", { xmlns: SVG, ...size, viewBox: `0 0 ${size.width} ${size.height}` }, definitions);
  whole.append(shape("rect", { ...size, fill: ground }), drawnNode(box, 0, true));
  return whole;

  function drawnNode(node, angle, first = false) {
    if (node.nodeType === Node.TEXT_NODE) return writing(node, angle);
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    const style = getComputedStyle(node);
    const seen = node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || style.display === "contents";
    if (!first && !seen) return ""; // nor what a fold hides
    if (style.clipPath !== "none" || node.matches("input, select, [data-aside], .katex-mathml")) return "";
    const area = within(node.getBoundingClientRect());
    const made = shape("g", style.opacity === "1" ? {} : { opacity: style.opacity });
    if (node instanceof SVGSVGElement) made.append(drawing(node, area));
    else {
      made.append(...grounds(style, area));
      if (node instanceof HTMLCanvasElement) made.append(picture(node.toDataURL(), area, style));
      else if (node instanceof HTMLImageElement) made.append(picture(copied(node), area, style));
      const inside = turned(style, angle);
      made.append(...[...node.childNodes].map((child) => drawnNode(child, inside)));
    }
    if (style.overflowX === "visible" && style.overflowY === "visible") return made;
    const id = `clip${definitions.children.length}`;
    definitions.append(shape("clipPath", { id }, shape("rect", area)));
    made.setAttribute("clip-path", `url(#${id})`);
    return made;
  }

  function picture(href, area, style) {
    const pixels = style.imageRendering === "pixelated" ? { style: "image-rendering: pixelated" } : {};
    return shape("image", { ...area, href, preserveAspectRatio: "none", ...pixels });
  }

  function copied(image) {
    const canvas = makeCanvas(image.naturalWidth, image.naturalHeight);
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/jpeg", 0.92);
  }

  function drawing(svg, area) {
    const copy = svg.cloneNode(true);
    const [from, to] = [[svg, ...svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
    from.forEach((one, place) => {
      const style = getComputedStyle(one);
      to[place].setAttribute("style", LOOK.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    });
    for (const [name, value] of Object.entries(area)) copy.setAttribute(name, value);
    return copy;
  }

  /** What lies below the words of an element: its colour, its colours, its border and its outline. */
  function grounds(style, area) {
    const made = [];
    const round = { rx: parseFloat(style.borderTopLeftRadius) || 0 };
    if (!CLEAR.test(style.backgroundColor)) made.push(shape("rect", { ...area, ...round, fill: style.backgroundColor }));
    if (style.backgroundImage.startsWith("linear-gradient") && style.backgroundSize === "auto") {
      made.push(shape("rect", { ...area, fill: `url(#${colours(style.backgroundImage)})` }));
    }
    for (const [width, kind, colour] of [
      [style.borderTopWidth === style.borderLeftWidth && style.borderTopWidth, style.borderTopStyle, style.borderTopColor],
      [style.outlineWidth, style.outlineStyle, style.outlineColor],
    ]) {
      if (kind === "none" || !parseFloat(width)) continue;
      made.push(shape("rect", { ...area, ...round, fill: "none", stroke: colour, "stroke-width": parseFloat(width) }));
    }
    return made;
  }

  function colours(gradient) {
    const found = [...gradient.matchAll(/(rgba?\([^)]*\))\s*([\d.]+%)?/g)];
    const stops = found.map(([, colour, at], place) =>
      shape("stop", { offset: at ?? `${(100 * place) / Math.max(1, found.length - 1)}%`, "stop-color": colour }),
    );
    const [id, up] = [`colours${definitions.children.length}`, gradient.includes("to top")];
    definitions.append(shape("linearGradient", { id, x1: 0, x2: up ? 0 : 1, y1: up ? 1 : 0, y2: 0 }, ...stops));
    return id;
  }

  function turned(style, angle) {
    const { a, b } = new DOMMatrix(style.transform === "none" ? "" : style.transform);
    const vertical = style.writingMode.startsWith("vertical") && (Math.round(angle) === 0 || style.transform !== "none");
    return angle + Math.round((180 * Math.atan2(b, a)) / Math.PI) + (vertical ? 90 : 0);
  }

  /** A text word by word: lines break where they do on the page. */
  function writing(node, angle) {
    const style = getComputedStyle(node.parentElement);
    measure.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const made = shape("g", {
      fill: style.color,
      "font-family": style.fontFamily,
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
      "font-style": style.fontStyle,
    });
    for (const { 0: word, index } of node.data.matchAll(angle ? /\S.*\S|\S/gs : /\S+/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const { x, y, width, height } = within(range.getBoundingClientRect());
      if (!width || !height) continue;
      if (angle) {
        const [middle, centre] = [x + width / 2, y + height / 2];
        const facts = { x: middle, y: centre, "text-anchor": "middle", "dominant-baseline": "central" };
        made.append(shape("text", { ...facts, transform: `rotate(${angle} ${middle} ${centre})` }, word));
      } else {
        const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = measure.measureText(word);
        made.append(shape("text", { x, y: y + (height - up - down) / 2 + up, textLength: width, lengthAdjust: "spacingAndGlyphs" }, word));
      }
    }
    return made;
  }
}

const TIMES = 2; // pixels of a PNG for each pixel of the page

/** The figure as a file: SVG, or PNG drawn from it. */
async function figureFile(box, kind) {
  const whole = figureOf(box);
  const svg = new Blob([new XMLSerializer().serializeToString(whole)], { type: "image/svg+xml" });
  if (kind === "svg") return svg;
  const address = URL.createObjectURL(svg);
  try {
    const image = Object.assign(new Image(), { src: address });
    await image.decode();
    const canvas = makeCanvas(TIMES * whole.getAttribute("width"), TIMES * whole.getAttribute("height"));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
