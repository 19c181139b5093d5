"use strict";
// Elements, numbers in words, and tables that sort.

// Makes an element. Texts are never read as HTML.
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((one) => one !== null));
  return made;
}

const NONE = "\u2013";
const LONG = 20; // rows: a table with more scrolls in itself

function digits(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(size >= 10 ? 3 : 2)));
}

const ms = (value) => (value === null ? NONE : `${digits(value)} ms`);
const percent = (share) =>
  share === null ? NONE : `${digits(Number((100 * share).toFixed(share < 0.1 ? 1 : 0)))} %`;

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${digits(value)} ${unit}`;
    value /= 1024;
  }
  return `${digits(value)} GiB`;
}

function rate(value) {
  if (value === null) return NONE;
  for (const unit of ["B/s", "kB/s", "MB/s"]) {
    if (value < 999.5) return `${digits(value)} ${unit}`;
    value /= 1000;
  }
  return `${digits(value)} GB/s`;
}

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

// Makes a table. A column: {title, value(row), text(row)?, number?, cell?(row)}.
// A press of a heading sorts by it; the first press puts the largest first.
function table(caption, columns, rows) {
  const body = el("tbody");
  const heads = columns.map((column) => {
    const button = el("button", { type: "button" }, column.title);
    const head = el("th", { scope: "col", class: column.number ? "number" : null }, button);
    button.addEventListener("click", () => sort(column, head));
    return head;
  });
  const fill = (ordered) =>
    body.replaceChildren(
      ...ordered.map((row) =>
        el("tr", {}, ...columns.map((column) => cell(column, row)))));
  const sort = (column, head) => {
    const now = head.getAttribute("aria-sort");
    const first = column.number ? "descending" : "ascending";
    const other = column.number ? "ascending" : "descending";
    const next = now === first ? other : first;
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    fill([...rows].sort((a, b) => sign * compare(column.value(a), column.value(b))));
  };
  fill(rows);
  const made = el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...heads)), body);
  const kind = rows.length > LONG ? "table long" : "table";
  return el("div", { class: kind, tabindex: "0", role: "region", "aria-label": caption }, made);
}

function cell(column, row) {
  const style = column.number ? "number" : column.name ? "name" : null;
  const text = () => String(column.text ? column.text(row) : column.value(row));
  const content = column.cell ? column.cell(row) : column.name ? parts(text()) : [text()];
  return el("td", { class: style }, ...content);
}

// A name may break behind "/" and "_".
function parts(name) {
  return name.split(/(?<=[/_])/).flatMap((part) => [part, el("wbr")]);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null ? 0 : 1) - (b === null ? 0 : 1);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}
