// JSON that Python packed before other bytes: its length in four bytes, little end first, then itself.

/** The JSON that begins at a byte of what was packed, and where what follows it begins. */
function headed(data, from = 0) {
  const to = from + 4 + new DataView(data.buffer, data.byteOffset).getUint32(from, true);
  return [JSON.parse(new TextDecoder().decode(data.subarray(from + 4, to))), to];
}

const TABLE = 768; // bytes of a scale: 256 colours

/** The scales of colours that begin at a byte, and where what follows them begins. */
function scalesFrom(data, from) {
  const names = ["sequential", "diverging", "attention"];
  const scales = names.map((name, place) => [name, data.slice(from + TABLE * place, from + TABLE * (place + 1))]);
  return [Object.fromEntries(scales), from + TABLE * names.length];
}
