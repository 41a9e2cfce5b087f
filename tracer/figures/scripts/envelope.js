// Messages from Python: plain data with arrays in it. tracer/figures/envelope.py says how they are packed.

const STORED = { f2: Uint16Array, f4: Float32Array, u1: Uint8Array };

/** The bytes of a message that a page or a script holds as text. */
export const decode = (text) => Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));

/** What a message holds: its header with each array in its place, a typed array that has a `shape` and a `dtype`. Numbers
 *  in half precision are decoded when they are first read. */
export function unpack(message) {
  const bytes = message.byteOffset % 4 ? message.slice() : message; // a typed array begins at a multiple of its size
  const { buffer, byteOffset } = bytes;
  let at = 4 + new DataView(buffer, byteOffset).getUint32(0, true);
  const { header, arrays } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, at)));
  for (const [path, dtype, shape, power = 0] of arrays) {
    const count = shape.reduce((product, size) => product * size, 1);
    const stored = new STORED[dtype](buffer, byteOffset + at, count);
    at += stored.byteLength + (-stored.byteLength & 3);
    const name = path.pop();
    const parent = path.reduce((node, key) => node[key], header);
    const facts = { shape, dtype };
    if (dtype === "f2") defer(parent, name, () => Object.assign(decoded(stored, power), facts));
    else parent[name] = Object.assign(stored, facts);
  }
  return header;
}

/** Gives an object a property whose value is made when it is first read. */
function defer(object, name, make) {
  const lay = (facts) => Object.defineProperty(object, name, { configurable: true, enumerable: true, ...facts });
  const get = () => {
    const value = make();
    lay({ value, writable: true });
    return value;
  };
  lay({ get });
}

function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

let halves; // every number in half precision, by its bits

/** Numbers in half precision that were multiplied by a power of two. */
function decoded(stored, power) {
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => half(bits));
  const scale = 2 ** -power;
  const numbers = new Float32Array(stored.length);
  for (let at = 0; at < stored.length; at++) numbers[at] = halves[stored[at]] * scale;
  return numbers;
}

const typeOf = (bytes) => (bytes[0] === 0x89 ? "image/png" : "image/jpeg");

/** The file of an image as an address. */
export function imageAddress(bytes) {
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return `data:${typeOf(bytes)};base64,${btoa(letters)}`;
}

/** The same as pixels. */
export const imageBitmap = (bytes) => createImageBitmap(new Blob([bytes], { type: typeOf(bytes) }));
