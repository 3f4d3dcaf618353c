// Converts values to texts, addresses and scales. This module needs no browser: its tests in
// ../tests/page.test.mjs run with `node --test`. Its name ends with mjs, so that Node reads it as a
// module.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < BINARY.length - 1) { value /= 1024; unit += 1; }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${BINARY[unit]}`;
}

export const rate = (value) => (value === null || value === undefined ? "-" : `${bytes(value)}/s`);

export function count(value) {
  if (value === null || value === undefined) return "-";
  if (value >= 1e6) return `${(value / 1e6).toFixed(value >= 1e7 ? 1 : 2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 10 || value === 0 ? String(Math.round(value)) : value.toFixed(1).replace(/\.0$/, "");
}

/** Formats a time in microseconds. */
export function micros(value) {
  if (value === null || value === undefined || value === 0) return "-";
  if (value < 1e3) return `${Math.round(value)} \u00b5s`;
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e4 ? 2 : 1)} ms`;
  return `${(value / 1e6).toFixed(1)} s`;
}

export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : "-");

export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return `${seconds} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const two = (number) => String(number).padStart(2, "0");

// Whether times are shown in UTC, as in the logs of services, and not in the time zone of the browser.
let isUtc = false;
export function showUtc(isWanted) { isUtc = isWanted; }

/** Returns the words about the time until storage is full, or an empty text if it is unknown or more than a year. */
export function fullIn(days) {
  if (days === null || days === undefined || days > 365) return "";
  return days < 2 ? `, full in about ${Math.round(days * 24)} h` : `, full in about ${Math.round(days)} days`;
}

/** Formats a point in time for the axis of a chart that covers `spanSeconds`. */
export function moment(ms, spanSeconds) {
  const date = new Date(ms);
  const part = (name) => date[`get${isUtc ? "UTC" : ""}${name}`]();
  const clock = `${two(part("Hours"))}:${two(part("Minutes"))}`;
  if (spanSeconds <= 600) return `${clock}:${two(part("Seconds"))}`;
  if (spanSeconds <= 172800) return clock;
  return `${part("FullYear")}-${two(part("Month") + 1)}-${two(part("Date"))}`;
}

/** Formats a point in time as its date and its time with seconds. */
export const dateAndTime = (ms) => `${moment(ms, 1e9)} ${moment(ms, 600)}`;

/** Returns the time zone of all shown times, such as UTC+02:00. `eastMinutes` is the offset of the browser. */
export function zone(eastMinutes) {
  if (isUtc || eastMinutes === 0) return "UTC";
  const [minutes, sign] = [Math.abs(eastMinutes), eastMinutes < 0 ? "-" : "+"];
  return `UTC${sign}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
}

/** Describes a balance in words, or the reason why the monitor cannot judge it. */
export const balanceText = ({ percent, reason }) => (percent === null ? reason : `${Math.round(percent)} % (100 % is even)`);

/** Describes the mean, lowest and highest value and their balance in words. */
export const spreadText = (spread, show) => `${show(spread.mean)} on average, from ${show(spread.lowest)} to ${show(spread.highest)}. Balance: ${balanceText(spread.balance)}.`;

/**
 * Names the parts of the cluster whose requests a report lacks, or returns an empty text. The monitor keeps
 * the requests of the heaviest clients, users and jobs of each target only.
 */
export const missingText = (texts) => (texts?.length ? `Not included: ${texts.join("; ").replaceAll("`", "")}.` : "");

/** Returns the parameter of a request for the object with this id. */
export const idOf = (id) => `&id=${encodeURIComponent(id)}`;

/** Returns the text of a reply with an error, which is plain text or JSON. */
export function messageOf(body) {
  try { return JSON.parse(body).error ?? body; } catch { return body; }
}

/** Describes why a request to the monitor has failed. */
export function reasonOf(error) {
  if (error.name === "TimeoutError") return "the monitor does not reply";
  if (error.name === "NoConnection") return "the page cannot connect to the monitor";
  if (error.status === 401) return "the monitor needs the password again; reload the page";
  if (error.status) return `the monitor replied ${error.status} ${error.message.trim().slice(0, 200)}`.trim();
  return error.message;
}

/**
 * Returns whether the newest statistics are older than some rounds, so that they do not describe this
 * moment. The setting `interval` or a large cluster makes rounds longer.
 */
export const isLate = ({ now_ms: now, frame_ms: end, interval_ms: interval }) => now - end > Math.max(10000, 3 * interval);

/**
 * Returns the time between two requests for the charts of a span that ends now, in milliseconds. In a chart
 * of a long span, each point covers minutes, so a request each second would return nothing new.
 */
export const refreshMs = (seconds, points) => Math.min(60000, Math.max(900, (seconds / points) * 900));

const withParameter = (path, parameter) => `${path}${path.includes("?") ? "&" : "?"}${parameter}`;

/**
 * Returns the links that export what a view shows: a row for each chart and each list, with its title, the
 * name of its file, and the address of each format. The span is `window`, as parameters. Each chart has
 * `points` points. `cluster` is the name of the chosen cluster, or empty.
 */
export function exportRows({ charts, lists, window, points, cluster }) {
  const ofCharts = charts.flatMap(({ title, queries }) => queries.map((query) => {
    const service = queries.length > 1 ? new URLSearchParams(query).get("service") : null;
    return { title: service ? `${title}, ${service}` : title, path: `/api/history?${query}&points=${points}`, hasSpan: true };
  }));
  return [...ofCharts, ...lists].map(({ title, path, hasSpan }) => {
    const ofSpan = hasSpan ? withParameter(path, window) : path;
    const whole = cluster ? withParameter(ofSpan, `cluster=${encodeURIComponent(cluster)}`) : ofSpan;
    const name = `skep-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
    return { title, name, links: ["csv", "xml", "json"].map((format) => [format, withParameter(whole, `format=${format}`)]) };
  });
}

/** Returns the title of the page, with the number of problems, so that a tab in the background shows it. */
export function titleOf(view, findings, hasContact) {
  const problems = findings.filter((finding) => finding.cause === null).length;
  const mark = hasContact ? (problems ? `(${problems}) ` : "") : "(no contact) ";
  return `${mark}${view} - Skep monitor`;
}

/** Returns the decoded parts of the address of a view. A part that is not valid is empty. */
export const partsOf = (hash) => hash.replace(/^#\//, "").split("?")[0].split("/").map((part) => {
  try { return decodeURIComponent(part); } catch { return ""; }
});

/** Returns the time span in the address of a view: its length and its end in seconds. A missing value is null. */
export function windowOf(hash) {
  const query = new URLSearchParams(hash.split("?")[1] ?? "");
  const number = (name, most) => {
    const value = Number(query.get(name));
    return Number.isInteger(value) && value > 0 && value <= most ? value : null;
  };
  // The history covers two years.
  return { span: number("span", 731 * 86400), until: number("until", 1e11) };
}

/** Returns the name of the cluster in the address of a view, or null. */
export const clusterOf = (hash) => new URLSearchParams(hash.split("?")[1] ?? "").get("cluster");

/** Returns the address of a view with a time span. */
export const withWindow = (hash, span, until) => `${hash || "#/overview"}?span=${span}&until=${until}`;

/** Returns the time span of a chart with a past event in its middle. */
export function windowAround(sinceMs, endedMs) {
  const span = Math.max(3600, Math.ceil((endedMs - sinceMs) / 500));
  return { span, until: Math.ceil((sinceMs + endedMs) / 2000 + span / 2) };
}

/**
 * Returns the address of the view about the object of a problem, such as t7, n2 or user 1000. Returns null
 * if the page has no such view. `services` are the services of the cluster: other nodes are clients.
 */
export function viewOf(object, services) {
  const [, kind, id] = /^(t|n|user )(\d+)$/.exec(object) ?? [];
  if (kind === "t") return `#/target/${id}`;
  if (kind === "user ") return `#/load/user/${id}`;
  if (kind === "n") return services.some((service) => String(service.id) === id) ? `#/server/${id}` : `#/load/client/${id}`;
  return object === "management" || object.startsWith("host ") ? "#/servers" : null;
}

/** Returns the entry of a table with this name. The names that each object has from JavaScript itself, such as `constructor`, are no entries. */
export const entryOf = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

/**
 * Returns the index of the point of a chart at a place on its axis of time, from 0 to 1. Each point is a
 * cell of the axis, or the points are from one end of the axis to the other.
 */
export function indexAt(share, count, hasCells) {
  const index = hasCells ? Math.floor(share * count) : Math.round(share * (count - 1));
  return count > 0 ? Math.min(count - 1, Math.max(0, index)) : null;
}

/** Returns the differences of two columns of a reply. If a value is missing in one column, the difference is null. */
export const difference = (all, part) => (all ?? []).map((value, at) =>
  (value === null || (part?.[at] ?? null) === null ? null : value - part[at]));

/**
 * Returns the order of a table after a click on the title of the column `at`: numbers from the highest and
 * texts from the first, then the other way round, and then the order of the monitor (undefined).
 */
export function nextOrder(order, at, isNumber) {
  if (order?.at !== at) return { at, isDescending: isNumber };
  return order.isDescending === isNumber ? { at, isDescending: !isNumber } : undefined;
}

/** Returns rows in the order of their values, which are numbers or texts. Rows without a value are last. */
export function sorted(rows, valueOf, isDescending) {
  const isMissing = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
  const compare = (one, other) => (typeof one === "number" && typeof other === "number"
    ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true }));
  const valued = rows.map((row) => ({ row, value: valueOf(row) }));
  valued.sort(({ value: one }, { value: other }) => {
    if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
    return isDescending ? compare(other, one) : compare(one, other);
  });
  return valued.map(({ row }) => row);
}

/** Returns a round number that is at least `value`. `base` is the factor between units: 1024 or 1000. */
export function ceiling(value, base) {
  if (!(value > 0)) return 1;
  const root = base === 1024 ? 1024 : 10;
  const unit = root ** Math.floor(Math.log(value) / Math.log(root));
  const steps = base === 1024 ? [1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    : [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
  return unit * steps.find((step) => value <= unit * step);
}
