// A table of the page as comma-separated values, as RFC 4180 has them.

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** The words of a cell; what stands in blocks of its own below one another is kept apart. */
const cellText = (cell) => {
  const parts = [...cell.querySelectorAll("span, small")].filter((part) => !part.querySelector("span, small"));
  const words = parts.length > 1 ? parts.map((part) => part.textContent) : [cell.textContent];
  return words.map((word) => word.trim()).filter(Boolean).join(" ");
};

const tableText = (table) =>
  [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cellText(cell))).join(",")).join("\r\n") + "\r\n";
