// What Python packed: facts of the visitor, a header, colours, and the cells of pictures.

/** What was packed; `picturesOf` finds the pictures in the header, each of which gets the cells. */
function unpack(data, picturesOf) {
  const [facts, packed] = headed(data);
  const [header, at] = headed(data, packed);
  const [colours, cells] = scalesFrom(data, at);
  const { buffer } = data.slice(cells);
  for (const picture of picturesOf(header)) if (picture?.which) picture.buffer = buffer;
  return { facts, header, colours };
}

/** The cells of matrix number `place` of a picture, as numbers; null where they did not come with the message. */
function cellsOf(picture, place, many = 1) {
  const at = picture.which.indexOf(place);
  if (at < 0) return null;
  const size = many * picture.shape[0] * picture.shape[1];
  if (picture.bits === 32) return new Float32Array(picture.buffer, picture.at + 4 * at * size, size);
  const halves = allHalves();
  const scale = 2 ** -picture.power;
  return Float32Array.from(new Uint16Array(picture.buffer, picture.at + 2 * at * size, size), (bits) => halves[bits] * scale);
}
