// How a table stands, as the address says it: the words of the filter, the column that it is sorted by, and which modules are
// unfolded, by their numbers in the order of the table. The last two are of one level: at another they say nothing.

const PLACE = ["filter", "fold", "sort", "open"];
const PAUSE = 1500; // milliseconds after which typing begins anew
const LONGEST = 200; // letters of what is unfolded

const worded = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

/** What follows the name of the level; null for another one. */
const ofLevel = (value, level) => (value?.startsWith(`${level}_`) ? value.slice(level.length + 1) : null);

/** `"ops_-4"`: by the column 4, the largest first. */
function sorting(value, level, count) {
  const [, down, column] = /^(-?)(\d+)$/.exec(ofLevel(value, level) ?? "") ?? [];
  return column !== undefined && Number(column) < count ? { column: Number(column), down: down === "-" } : null;
}
const sorted = (sort, level) => sort && `${level}_${sort.down ? "-" : ""}${sort.column}`;

/** `"ops_0-2.7"`: the modules 0, 1, 2 and 7 are unfolded; null where the address does not say. */
function places(value, level, modules) {
  const text = ofLevel(value, level);
  if (text === null || !/^(\d+(-\d+)?(\.\d+(-\d+)?)*)?$/.test(text)) return null;
  const known = modules();
  return text.split(".").filter(Boolean).flatMap((range) => {
    const [first, last = first] = range.split("-").map(Number);
    return known.slice(first, last + 1);
  });
}

/** The same written; null where it is what the table begins with, or too long for an address. */
function placed(open, first, level, modules) {
  if (open.size === (first?.length ?? 0) && (first ?? []).every((key) => open.has(key))) return null;
  const ranges = [];
  modules().forEach((key, number) => {
    if (!open.has(key)) return;
    if (ranges.at(-1)?.[1] === number - 1) ranges.at(-1)[1] = number;
    else ranges.push([number, number]);
  });
  const value = `${level}_${ranges.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(".")}`;
  return value.length > LONGEST ? null : value;
}
