// Rectangles, texts and curves on a canvas.

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

// A curve from a point to another, level at both ends, in so many steps, as far as a `part` of it; `near` and `far` are
// the places of its handles from left to right.
export function strokeCurve(context, [x, y], [toX, toY], [near, far], steps, part) {
  context.beginPath();
  context.moveTo(x, y);
  for (let step = 1; step <= steps * part; step++) {
    const [u, v] = [step / steps, 1 - step / steps];
    const [a, b, c, d] = [v ** 3, 3 * v * v * u, 3 * v * u * u, u ** 3];
    context.lineTo(a * x + b * near + c * far + d * toX, a * y + b * y + c * toY + d * toY);
  }
  context.stroke();
}
