// Charts on canvas elements: lines over time, and heat maps of latency. Each chart also has a
// description in words for screen readers.
import { h, setText } from "./format.js";
import { ceiling, count, micros, moment } from "./values.mjs";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Adapts a canvas to the pixel density of the screen. Returns the drawing context and the size. */
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
  return { context, width, height };
}

function timeAxis(context, data, left, right, bottom, span) {
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

/**
 * A panel with lines over time. `lines` have: name, column (or `of`, which computes the values from the
 * reply to the query), and source (index of the query).
 */
export class LineChart {
  constructor(title, queries, lines, show, base = 1000) {
    Object.assign(this, { title, queries, lines, show, base });
    this.canvas = h("canvas", { role: "img", "aria-label": title });
    this.values = lines.map(() => h("b"));
    const legend = lines.map((line, index) =>
      h("span", {}, h("span", { class: `key k${index + 1}` }), line.name, this.values[index]));
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h2", {}, title), h("div", { class: "legend" }, legend)), this.canvas);
  }

  draw(results, span) {
    this.last = [results, span];
    const { context, width, height } = prepare(this.canvas);
    if (width === 0 || results.some((result) => !result)) return;
    const left = 72, right = width - 6, top = 8, bottom = height - 24;
    const columns = this.lines.map((line) => {
      const result = results[line.source ?? 0];
      return line.of ? line.of(result) : result[line.column] ?? [];
    });
    const highest = Math.max(0, ...columns.flat().filter((value) => value !== null));
    const max = ceiling(highest, this.base);
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
      const text = share === 0 ? "0" : highest > 0 ? this.show(max * share) : "";
      if (share !== 0.25 && share !== 0.75) context.fillText(text, left - 8, at);
    }
    timeAxis(context, results[0], left, right, bottom, span);
    columns.forEach((column, index) => this.line(context, column, index, { left, right, bottom, y }));
    const words = this.lines.map((line, index) => {
      const known = columns[index].filter((value) => value !== null);
      const newest = known.length ? known[known.length - 1] : null;
      setText(this.values[index], this.show(newest));
      return `${line.name} ${this.show(newest)}, at most ${this.show(known.length ? Math.max(...known) : null)}`;
    });
    this.canvas.setAttribute("aria-label", `${this.title}: ${words.join("; ")}`);
  }

  line(context, column, index, { left, right, bottom, y }) {
    const x = (at) => left + (at / Math.max(1, column.length - 1)) * (right - left);
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
export class HeatMap {
  constructor(title, query) {
    Object.assign(this, { title, queries: [`${query}&heat=1`] });
    this.canvas = h("canvas", { class: "heat", role: "img", "aria-label": title });
    this.values = ["p50_us", "p95_us", "p99_us"].map((column) => ({ column, element: h("b") }));
    const legend = this.values.map(({ column, element }, index) =>
      h("span", {}, h("span", { class: `key k${index + 2}` }), column.replace("_us", ""), element));
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h2", {}, title), h("div", { class: "legend" }, legend)), this.canvas);
  }

  draw(results, span) {
    this.last = [results, span];
    const { context, width, height } = prepare(this.canvas);
    const [data] = results;
    if (width === 0 || !data?.heat) return;
    const left = 72, right = width - 6, top = 8, bottom = height - 24;
    const used = data.heat.flatMap((rows) => rows?.map((value, row) => (value > 0 ? row : -1)) ?? []).filter((row) => row >= 0);
    const low = used.length ? Math.max(0, Math.min(...used) - 1) : 4;
    const high = used.length ? Math.min(27, Math.max(...used) + 1) : 16;
    const rows = high - low + 1;
    const cellWidth = (right - left) / data.heat.length, cellHeight = (bottom - top) / rows;
    const most = Math.max(1, ...data.heat.flatMap((column) => column ?? []));
    const tone = color("--heat");
    data.heat.forEach((column, at) => column?.forEach((value, row) => {
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
    timeAxis(context, data, left, right, bottom, span);
    this.values.forEach(({ column, element }, index) => {
      context.strokeStyle = color(`--s${index + 2}`);
      context.lineWidth = 1.5;
      context.beginPath();
      let pen = false;
      data[column].forEach((value, at) => {
        if (value === null) { pen = false; return; }
        const row = Math.log2(value / 1.024);
        const x = left + (at + 0.5) * cellWidth, y = bottom - (row - low + 1) * cellHeight;
        if (pen) context.lineTo(x, y); else context.moveTo(x, y);
        pen = true;
      });
      context.stroke();
      const known = data[column].filter((value) => value !== null);
      setText(element, known.length ? micros(known[known.length - 1]) : "-");
    });
    const words = this.values.map(({ column, element }) => `${column.replace("_us", "")} ${element.textContent}`);
    this.canvas.setAttribute("aria-label", `${this.title}: ${words.join(", ")}; ${count(used.length)} cells with operations`);
  }
}
