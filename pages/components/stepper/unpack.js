// What Python packed: facts of the visitor, headers and details of steps, colours, and the cells of pictures.

function unpack(data) {
  const [facts, packed] = headed(data);
  const [header, at] = headed(data, packed);
  const [colours, cells] = scalesFrom(data, at);
  const { buffer } = data.slice(cells);
  for (const detail of Object.values(header.details)) {
    for (const picture of [detail.tensor, detail.terms]) if (picture?.which) picture.buffer = buffer;
  }
  return { facts, header, colours };
}

let halves; // every float16 as a number
function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits & 32768 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24;
}

/** The cells of matrix number `place` of a picture, as numbers; null where they did not come with the message. */
function cellsOf(picture, place, many = 1) {
  const at = picture.which.indexOf(place);
  if (at < 0) return null;
  const size = many * picture.shape[0] * picture.shape[1];
  if (picture.bits === 32) return new Float32Array(picture.buffer, picture.at + 4 * at * size, size);
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => half(bits));
  const scale = 2 ** -picture.power;
  return Float32Array.from(new Uint16Array(picture.buffer, picture.at + 2 * at * size, size), (bits) => halves[bits] * scale);
}
