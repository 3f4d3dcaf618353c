// Charts on canvas elements: lines over time, and heat maps of latency. Each chart also has a
// description in words for screen readers.
import { h, setText } from "./format.js";
import { ceiling, dateAndTime, indexAt, micros, moment } from "./values.mjs";

// The margins of the drawing in pixels, with space for the texts of the axes.
const LEFT = 72, RIGHT = 6, TOP = 8, BOTTOM = 24;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Adapts a canvas to the pixel density of the screen. Returns the drawing context and the area of the drawing. */
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
}

function timeAxis({ context, left, right, bottom }, data, span) {
  context.fillStyle = color("--soft");
  context.textBaseline = "top";
  const marks = right - left < 420 ? 3 : 5;
  for (let mark = 0; mark < marks; mark += 1) {
    const share = mark / (marks - 1);
    const at = data.at[Math.round(share * (data.at.length - 1))];
    context.textAlign = mark === 0 ? "left" : mark === marks - 1 ? "right" : "center";
    context.fillText(moment(at, span), left + share * (right - left), bottom + 6);
  }
}

/** Returns the last value of a column that is known, or null. */
const newestOf = (column) => column.findLast((value) => value !== null) ?? null;

/**
 * A panel with a chart over time. Beside its title are the figures of the newest moment, or of the moment
 * that the pointer or the arrow keys have chosen. If the user chooses a part of the chart, the canvas
 * sends the event `choose` with its times. `names` are the names of the figures, and `first` is the number
 * of the first colour.
 */
class Chart {
  constructor(title, queries, names, first) {
    // `at` is the index of the chosen moment, and `from` that of the moment at which the user has begun to
    // choose a part, or null.
    Object.assign(this, { title, queries, names, at: null, from: null });
    this.canvas = h("canvas", { role: "img", tabindex: 0, "aria-label": title });
    this.values = names.map(() => h("b"));
    this.when = h("span", { class: "when" });
    // Screen readers read the figures of a moment aloud that the keys have chosen.
    this.spoken = h("span", { class: "spoken", "aria-live": "polite" });
    const legend = names.map((name, index) =>
      h("span", {}, h("span", { class: `key k${index + first}` }), name, this.values[index]));
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h2", {}, title), h("div", { class: "legend" }, this.when, legend)), this.canvas, this.spoken);
    const on = (name, handler) => this.canvas.addEventListener(name, handler);
    on("pointermove", (event) => this.point(this.indexOf(event)));
    on("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.indexOf(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    on("pointerup", (event) => this.finish(this.indexOf(event)));
    for (const name of ["pointerleave", "pointercancel", "blur"]) on(name, () => { this.from = null; this.point(null); });
    on("keydown", (event) => this.press(event));
  }

  /** The data of the first query, which has the times of the points. */
  get data() { return this.last?.[0][0]; }

  indexOf(event) {
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    return this.data ? indexAt((event.offsetX - LEFT) / width, this.data.at.length, this.hasCells) : null;
  }

  /** Shows the figures of the point with this index, or of the newest moment if the index is null. */
  point(index) {
    if (index === this.at) return;
    this.at = index;
    if (this.last) this.draw(...this.last);
  }

  /** Ends the choice of a part of the chart. A click, or a move by less than two points, chooses no part. */
  finish(index) {
    const [from, to] = [Math.min(this.from, index), Math.max(this.from, index)];
    if (this.from !== null && index !== null && to - from >= 2) this.choose(from, to);
    this.from = null;
  }

  choose(from, to) {
    const { at, step_ms: step } = this.data;
    this.canvas.dispatchEvent(new CustomEvent("choose", { bubbles: true, detail: { fromMs: at[from], toMs: at[to] + step } }));
  }

  press(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const end = this.data.at.length - 1, at = this.at ?? end;
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: end }[event.key];
    if (next !== undefined) {
      this.point(Math.min(end, Math.max(0, next)));
      setText(this.spoken, `${this.when.textContent}: ${this.words.join(", ")}`);
    } else if (event.key === "Escape") {
      this.point(null);
    } else if (event.key === "Enter" && this.at !== null) {
      const part = Math.max(1, Math.round(end / 8));
      this.choose(Math.max(0, at - part), Math.min(end, at + part));
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Draws the chart. `results` are the replies to the queries. */
  draw(results, span) {
    this.last = [results, span];
    const area = prepare(this.canvas);
    if (area.width === 0 || results.some((result) => !result)) return;
    const columns = this.plot(area, results);
    timeAxis(area, results[0], span);
    // The span may have become shorter since the choice of the moment.
    if (this.at !== null && this.at >= results[0].at.length) this.at = null;
    this.mark(area, results[0].at.length);
    const chosen = columns.map((column) => (this.at === null ? newestOf(column) : column[this.at] ?? null));
    const texts = chosen.map((value) => this.show(value));
    texts.forEach((text, index) => setText(this.values[index], text));
    const time = this.at === null ? null : results[0].at[this.at];
    setText(this.when, time === null ? "" : span >= 86400 ? dateAndTime(time) : moment(time, 600));
    this.words = this.names.map((name, index) => `${name} ${texts[index]}`);
    const isEmpty = columns.every((column) => newestOf(column) === null);
    if (isEmpty) this.note(area, this.nothing);
    const figures = columns.map((column, index) => `${this.names[index]} ${this.show(newestOf(column))}, at most ${this.show(highest(column))}`);
    this.canvas.setAttribute("aria-label", `${this.title}: ${isEmpty ? this.nothing : figures.join("; ")}`);
  }

  /** Marks the chosen moment, and the part that the user chooses. */
  mark({ context, left, right, top, bottom }, points) {
    if (this.at === null) return;
    const x = (index) => left + this.share(index, points) * (right - left);
    if (this.from !== null) {
      context.globalAlpha = 0.15;
      context.fillStyle = color("--link");
      context.fillRect(Math.min(x(this.from), x(this.at)), top, Math.abs(x(this.at) - x(this.from)), bottom - top);
      context.globalAlpha = 1;
    }
    context.strokeStyle = color("--soft");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x(this.at)) + 0.5, top);
    context.lineTo(Math.round(x(this.at)) + 0.5, bottom);
    context.stroke();
  }

  note({ context, left, right, top, bottom }, text) {
    context.fillStyle = color("--soft");
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, (left + right) / 2, (top + bottom) / 2);
  }

  /** Returns the place of a point on the axis of time: 0 to 1. */
  share(index, points) {
    return this.hasCells ? (index + 0.5) / points : index / Math.max(1, points - 1);
  }
}

/** Returns the highest known value of a column, or null. */
function highest(column) {
  const known = column.filter((value) => value !== null);
  return known.length ? known.reduce((one, other) => Math.max(one, other)) : null;
}

/**
 * A panel with lines over time. `lines` have: name, column (or `of`, which computes the values from the
 * reply to the query), and source (index of the query).
 */
export class LineChart extends Chart {
  constructor(title, queries, lines, show, base = 1000) {
    super(title, queries, lines.map((line) => line.name), 1);
    Object.assign(this, { lines, show, base, hasCells: false, nothing: "Nothing to show in this span." });
  }

  /** Draws the lines. Returns their values. */
  plot(area, results) {
    const { context, left, right, top, bottom } = area;
    const columns = this.lines.map((line) => {
      const result = results[line.source ?? 0];
      return line.of ? line.of(result) : result[line.column] ?? [];
    });
    const most = Math.max(0, ...columns.map((column) => highest(column) ?? 0));
    const max = ceiling(most, this.base);
    const y = (value) => bottom - (value / max) * (bottom - top);
    context.strokeStyle = color("--line");
    context.fillStyle = color("--soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const at = Math.round(y(max * share)) + 0.5;
      context.beginPath();
      context.moveTo(left, at);
      context.lineTo(right, at);
      context.stroke();
      const text = share === 0 ? "0" : most > 0 ? this.show(max * share) : "";
      if (share !== 0.25 && share !== 0.75) context.fillText(text, left - 8, at);
    }
    columns.forEach((column, index) => this.line(context, column, index, { left, right, bottom, y }));
    return columns;
  }

  line(context, column, index, { left, right, bottom, y }) {
    const x = (at) => left + this.share(at, column.length) * (right - left);
    const tone = color(`--s${index + 1}`);
    context.strokeStyle = tone;
    context.lineWidth = 1.7;
    context.lineJoin = "round";
    let start = null;
    const finish = (end) => {
      if (start === null) return;
      context.stroke();
      if (index === 0) {
        context.lineTo(x(end), bottom);
        context.lineTo(x(start), bottom);
        context.globalAlpha = 0.09;
        context.fillStyle = tone;
        context.fill();
        context.globalAlpha = 1;
      }
      start = null;
    };
    column.forEach((value, at) => {
      if (value === null) return finish(at - 1);
      if (start === null) {
        start = at;
        context.beginPath();
        context.moveTo(x(at), y(value));
      }
      context.lineTo(x(at), y(value));
    });
    finish(column.length - 1);
  }
}

/** A panel with the distribution of latency over time: darker cells have more operations. */
export class HeatMap extends Chart {
  constructor(title, query) {
    super(title, [`${query}&heat=1`], ["p50", "p95", "p99"], 2);
    Object.assign(this, { show: micros, hasCells: true, nothing: "No operation in this span." });
    this.canvas.classList.add("heat");
  }

  /** Draws the cells, and the percentiles as lines. Returns the percentiles. */
  plot(area, [data]) {
    const { context, left, right, top, bottom } = area;
    const columns = ["p50_us", "p95_us", "p99_us"].map((column) => data[column] ?? []);
    const heat = data.heat ?? [];
    const used = heat.flatMap((rows) => rows?.map((value, row) => (value > 0 ? row : -1)) ?? []).filter((row) => row >= 0);
    const low = used.length ? Math.max(0, used.reduce((one, other) => Math.min(one, other)) - 1) : 4;
    const high = used.length ? Math.min(27, used.reduce((one, other) => Math.max(one, other)) + 1) : 16;
    const rows = high - low + 1;
    const cellWidth = (right - left) / Math.max(1, heat.length), cellHeight = (bottom - top) / rows;
    const most = heat.flatMap((column) => column ?? []).reduce((one, other) => Math.max(one, other), 1);
    const tone = color("--heat");
    heat.forEach((column, at) => column?.forEach((value, row) => {
      if (value === 0 || row < low || row > high) return;
      const strength = 0.12 + 0.88 * (Math.log1p(value) / Math.log1p(most));
      context.fillStyle = `rgba(${tone}, ${strength.toFixed(3)})`;
      // Round to whole pixels. Otherwise cells would overlap, which looks like stripes.
      const start = Math.round(left + at * cellWidth), end = Math.round(left + (at + 1) * cellWidth);
      const upper = Math.round(bottom - (row - low + 1) * cellHeight), lower = Math.round(bottom - (row - low) * cellHeight);
      context.fillRect(start, upper, end - start, lower - upper);
    }));
    context.fillStyle = color("--soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(rows / 7));
    for (let row = low; row <= high; row += every) {
      const text = row === 27 ? "> 69 s" : micros(1.024 * 2 ** row);
      context.fillText(text, left - 8, bottom - (row - low + 0.5) * cellHeight);
    }
    columns.forEach((column, index) => {
      context.strokeStyle = color(`--s${index + 2}`);
      context.lineWidth = 1.5;
      context.beginPath();
      let pen = false;
      column.forEach((value, at) => {
        if (value === null) { pen = false; return; }
        const row = Math.log2(value / 1.024);
        const x = left + (at + 0.5) * cellWidth, y = bottom - (row - low + 1) * cellHeight;
        if (pen) context.lineTo(x, y); else context.moveTo(x, y);
        pen = true;
      });
      context.stroke();
    });
    return columns;
  }
}
