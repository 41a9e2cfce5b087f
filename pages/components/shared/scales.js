// Scales of colours that Python packed.

const TABLE = 768; // bytes of a scale: 256 colours

/** The scales of colours that begin at a byte, and where what follows them begins. */
function scalesFrom(data, from) {
  const names = ["sequential", "diverging", "attention"];
  const scales = names.map((name, place) => [name, data.slice(from + TABLE * place, from + TABLE * (place + 1))]);
  return [Object.fromEntries(scales), from + TABLE * names.length];
}
