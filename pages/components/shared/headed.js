// JSON that Python packed before other bytes: its length in four bytes, little end first, then itself.

/** The JSON that begins at a byte of what was packed, and where what follows it begins. */
function headed(data, from = 0) {
  const to = from + 4 + new DataView(data.buffer, data.byteOffset).getUint32(from, true);
  return [JSON.parse(new TextDecoder().decode(data.subarray(from + 4, to))), to];
}
