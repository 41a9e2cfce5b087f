// Numbers as text, for the film's player and for the components of a page. They round as tracer/utils/text.py does.

export const signed = (text) => text.replaceAll("-", "−");

// A number with so many digits behind its point; of two that are as near, the even one, as Python rounds.
function fixed(value, places) {
  const text = value.toFixed(places); // of a tie, the one that is farther from 0
  const tie = Math.abs(value * 2 ** (places + 1)) % 2 === 1;
  return tie && Number(text.at(-1)) % 2 ? (value - Math.sign(value) * 0.25 * 10 ** -places).toFixed(places) : text;
}

/** A share in per cent with as many digits as it needs: only what is 0 is 0 %, and only what is 1 is 100 %. */
export function percent(share) {
  if (share > 0 && share < 0.0001) return "<\u00a00.01\u00a0%";
  if (share >= 0.9995 && share < 1) return ">\u00a099.9\u00a0%";
  return `${fixed(100 * share, share >= 0.01 || share === 0 ? 1 : 2)}\u00a0%`;
}

/** A number with so many digits behind its point, and a typographic sign. */
export const decimals = (value, places) => signed(fixed(value, places));

const RAISED = { "-": "⁻", ...["⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"] };

/** A number with so many significant digits; whole numbers have all of theirs. */
export function numeral(value, digits = 4) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return signed(String(value));
  const [number, power] = value.toExponential(digits - 1).split("e");
  if (power >= -4 && power < digits) return signed(String(Number(fixed(value, digits - 1 - power))));
  return `${signed(String(Number(number)))} × 10${[...String(Number(power))].map((digit) => RAISED[digit]).join("")}`;
}
