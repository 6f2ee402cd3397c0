// Elements without innerHTML: whatever a payload holds, it is text.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width-share") element.style.width = `${Math.min(100, Math.max(0, 100 * value))}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export const el = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

/** Say something anew, but only if it has changed: a screen reader and a selection are not disturbed. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table with headings; each cell is text, or an element. `n` marks columns of numbers. */
export function table(caption, headings, rows, { empty = "none" } = {}) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const isNumber = headings.map((heading) => heading.startsWith("#"));
  const kind = (column) => ({ class: isNumber[column] ? "n" : null });
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      null,
      el("caption", { class: "hidden" }, caption),
      el("thead", null, el("tr", null, headings.map((heading, column) => el("th", { scope: "col", ...kind(column) }, heading.replace(/^#/, ""))))),
      el("tbody", null, rows.map((row) => el("tr", null, row.map((cell, column) => el("td", kind(column), cell ?? "–"))))),
    ),
  );
}
