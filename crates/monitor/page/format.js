// Creates and updates elements. Names come from users and hosts, so the page inserts them only as
// text nodes, and never as HTML.

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

/** Shows a text, as a link if it has an address. A link with the focus keeps it. */
export function showLinked(element, text, href) {
  const link = element.querySelector("a");
  if (Boolean(link) !== Boolean(href)) element.replaceChildren(href ? h("a", { href }, text) : text);
  else if (!link) setText(element, text);
  else {
    setText(link, text);
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  }
}

/** A table that updates its rows and cells in place, so that focus and selection are preserved. */
export class Table {
  /** `columns` have: title, text(row), and optionally number, wide, href(row), which may be null, and cell(row, td). */
  constructor(label, columns, key) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    const titles = columns.map((column) => h("th", { scope: "col", class: this.classes(column) }, column.title));
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true }, "Nothing in this span.");
    const table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, titles)), this.body);
    // The keyboard can scroll a wide table on a narrow screen only if the element has the focus.
    const scrolled = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
    this.element = h("div", {}, scrolled, this.empty);
  }

  classes(column) {
    return [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
  }

  update(rows) {
    const kept = new Set();
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
