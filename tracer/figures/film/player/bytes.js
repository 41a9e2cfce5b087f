// What Python packed as bytes, for the film's player and for the components of a page.

/** The JSON that begins at a byte, behind its length in four bytes, little end first, and where what follows it
 *  begins. */
export function headed(data, from = 0) {
  const to = from + 4 + new DataView(data.buffer, data.byteOffset).getUint32(from, true);
  return [JSON.parse(new TextDecoder().decode(data.subarray(from + 4, to))), to];
}

function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

let halves;
/** Every number in half precision, by its bits. */
export const allHalves = () => (halves ??= Float32Array.from({ length: 65536 }, (_, bits) => half(bits)));
