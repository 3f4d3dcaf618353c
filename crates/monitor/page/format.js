// Creates and updates elements. Names come from users and hosts, so the page inserts them only as
// text nodes, and never as HTML.

import { nextOrder, sorted } from "./values.mjs";

/** Creates an element. Children are elements or texts; properties are attributes or handlers. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** Sets the text of an element if it differs. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Shows a text, as a link if it has an address. A link that has the focus keeps the focus. */
export function showLinked(element, text, href) {
  const link = element.querySelector("a");
  if (Boolean(link) !== Boolean(href)) element.replaceChildren(href ? h("a", { href }, text) : text);
  else if (!link) setText(element, text);
  else {
    setText(link, text);
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  }
}

// The order of the rows and the filter that the user has chosen for each table, by its label. Both
// stay when the user opens another view.
const orders = new Map(), filters = new Map();

/** A table that updates its rows and cells in place, so that focus and selection are preserved. */
export class Table {
  /**
   * `columns` have: title, text(row), and optionally number, wide, href(row), which may be null, value(row)
   * for the order of the rows, and cell(row, td). The user can sort by each column with a text or a value.
   * With `hasFilter`, the table has a field for a text that the shown rows contain.
   */
  constructor(label, columns, key, hasFilter = false) {
    Object.assign(this, { label, columns, key, rows: new Map(), given: [], nothing: "Nothing in this span." });
    this.titles = columns.map((column, at) => this.title(column, at));
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true });
    const table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, this.titles)), this.body);
    // The keyboard can scroll a wide table on a narrow screen only if the element has the focus.
    const scrolled = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
    this.element = h("div", {}, hasFilter ? this.filterField() : null, scrolled, this.empty);
  }

  title(column, at) {
    const isSortable = column.text || column.value;
    const sort = () => {
      orders.set(this.label, nextOrder(orders.get(this.label), at, Boolean(column.number || column.value)));
      this.show();
    };
    const content = isSortable ? h("button", { type: "button", class: "sort", click: sort }, column.title) : column.title;
    return h("th", { scope: "col", class: this.classes(column) }, content);
  }

  filterField() {
    this.found = h("span", { class: "quiet", role: "status" });
    const field = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter of ${this.label}`, title: "Key /",
      input: () => { filters.set(this.label, field.value); this.show(); } });
    field.value = filters.get(this.label) ?? "";
    return h("div", { class: "filter" }, field, this.found);
  }

  classes(column) {
    return [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
  }

  update(rows) {
    // `rows` is missing if a monitor of another version does not send this list.
    this.given = rows ?? [];
    this.show();
  }

  /** Returns the rows that contain the text of the filter, in the order that the user has chosen. */
  chosen() {
    const filter = this.found ? (filters.get(this.label) ?? "").trim().toLowerCase() : "";
    const texts = (row) => this.columns.map((column) => (column.text ? column.text(row) : "")).join("\n").toLowerCase();
    const found = filter ? this.given.filter((row) => texts(row).includes(filter)) : this.given;
    if (this.found) setText(this.found, filter ? `${found.length} of ${this.given.length}` : "");
    this.empty.textContent = filter ? `No row contains "${filter}".` : this.nothing;
    const order = orders.get(this.label);
    const column = order && this.columns[order.at];
    return column ? sorted(found, column.value ?? column.text, order.isDescending) : found;
  }

  show() {
    const order = orders.get(this.label);
    this.titles.forEach((title, at) => {
      if (order?.at === at) title.setAttribute("aria-sort", order.isDescending ? "descending" : "ascending");
      else title.removeAttribute("aria-sort");
    });
    const rows = this.chosen(), kept = new Set(), focused = document.activeElement;
    rows.forEach((row, index) => {
      const key = this.key(row);
      kept.add(key);
      let shown = this.rows.get(key);
      if (!shown) {
        shown = this.create();
        this.rows.set(key, shown);
      }
      this.columns.forEach((column, at) => {
        const cell = shown.cells[at];
        if (column.cell) column.cell(row, cell);
        else showLinked(cell, column.text(row), column.href?.(row));
      });
      if (this.body.children[index] !== shown.row) this.body.insertBefore(shown.row, this.body.children[index] ?? null);
    });
    for (const [key, shown] of this.rows) {
      if (!kept.has(key)) { shown.row.remove(); this.rows.delete(key); }
    }
    // A link in a row that has moved has lost the focus.
    if (focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
    this.empty.hidden = rows.length > 0;
  }

  create() {
    const cells = this.columns.map((column) => h("td", { class: this.classes(column) }));
    return { row: h("tr", {}, cells), cells };
  }
}

/** Shows a share as a bar with a text. */
export function meter(cell, share, text, limits = [0.85, 0.95]) {
  if (!cell.bar) {
    cell.fill = h("i");
    cell.bar = h("span", { class: "meter", "aria-hidden": "true" }, cell.fill);
    cell.words = document.createTextNode("");
    cell.append(cell.bar, cell.words);
  }
  const known = Number.isFinite(share);
  cell.fill.style.width = `${known ? Math.round(Math.min(1, Math.max(0, share)) * 100) : 0}%`;
  cell.bar.className = `meter ${share >= limits[1] ? "critical" : share >= limits[0] ? "warning" : ""}`;
  setText(cell.words, known ? text : "-");
}

/** Shows a state as a coloured dot with a word. */
export function state(cell, kind, word) {
  if (!cell.dot) {
    cell.dot = h("span", { class: "dot", "aria-hidden": "true" });
    cell.word = h("span");
    cell.append(h("span", { class: "state" }, cell.dot, cell.word));
  }
  cell.dot.className = `dot ${kind}`;
  setText(cell.word, word);
}
