// Rectangles and texts on a canvas.

export function fillBox(context, colour, x, y, w, h) {
  context.fillStyle = colour;
  context.fillRect(x, y, w, h);
}

export function strokeBox(context, colour, width, x, y, w, h) {
  Object.assign(context, { strokeStyle: colour, lineWidth: width });
  context.strokeRect(x, y, w, h);
}

// A text at a point, in the middle of its height; it is squeezed where it is longer than `most`.
export function drawText(context, text, x, y, { font, colour, align = "center", baseline = "middle", most }) {
  Object.assign(context, { font, fillStyle: colour, textAlign: align, textBaseline: baseline });
  context.fillText(text, x, y, most);
}
