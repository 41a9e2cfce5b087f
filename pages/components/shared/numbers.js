// Numbers as tooltips, captions and tables write them: a share in per cent, a number with so many digits.

const signed = (text) => text.replaceAll("-", "−");

/** A share in per cent, as `percent` of tracer/figures/drawing.py writes it. */
function percent(share) {
  if (share > 0 && share < 0.0001) return "<\u00a00.01\u00a0%";
  if (share >= 0.9995 && share < 1) return ">\u00a099.9\u00a0%";
  return `${(100 * share).toFixed(share >= 0.01 || share === 0 ? 1 : 2)}\u00a0%`;
}

/** A number with so many digits behind its point. */
const decimals = (value, places) => signed(value.toFixed(places));

const RAISED = { "-": "⁻", ...["⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"] };
/** A number with so many digits; whole numbers have all of theirs. */
function numeral(value, digits = 4) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "+∞";
  const whole = Number.isInteger(value) && Math.abs(value) < 1e9;
  const [number, power] = String(whole ? value : Number(value.toPrecision(digits))).split("e");
  return signed(number) + (power ? ` × 10${[...power].map((digit) => RAISED[digit] ?? "").join("")}` : "");
}
