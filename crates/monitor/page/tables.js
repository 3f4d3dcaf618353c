// The tables of the views and their rows, and the panels that consist of tables.
import { h, setText, Table, meter, state } from "./format.js";
import { bytes, rate, count, micros, missingText, percent, ago, moment, viewOf } from "./values.mjs";

export const panel = (title, ...children) =>
  h("section", { class: "panel" }, h("header", {}, h("h2", {}, title)), ...children);

/** Returns a column of numbers. */
export const number = (title, value, show) => ({ title, number: true, value, text: (row) => show(value(row)) });
/** Shows a value with the function `show`, or nothing if the value is null. */
const ifKnown = (show) => (value) => (value === null ? "" : show(value));
/** Returns a column of times in milliseconds, which may be null. */
export const knownTime = (title, ms) => number(title, (row) => (ms(row) === null ? null : ms(row) * 1000), ifKnown(micros));
/** Returns the shares of the space of a target and of the memory of a host that are used. */
export const usedSpace = (row) => 1 - row.free_bytes / row.size_bytes;
const usedMemory = (row) => 1 - row.memory_free_bytes / row.memory_bytes;

/** Returns a column with the share of each row in the total time of all rows. */
export const share = () => ({ title: "Share of time", value: (row) => row.share, cell: (row, cell) => meter(cell, row.share, percent(row.share), [2, 2]) });

export const figures = [
  number("Ops/s", (row) => row.operations_per_second, count),
  number("Read", (row) => row.read_bytes_per_second, rate),
  number("Written", (row) => row.written_bytes_per_second, rate),
  { ...number("Mean", (row) => row.mean_us, micros), wide: true },
];
/** Services count failed requests by target and kind, but not by client, user, group or job. */
export const errors = { ...number("Errors/s", (row) => row.errors_per_second, count), wide: true };
const queues = [
  errors,
  { ...number("p99", (row) => row.p99_us, micros), wide: true },
  { ...number("Queued", (row) => row.queued, count), wide: true },
  { ...number("Busy", (row) => row.busy, count), wide: true },
];

/** Returns the worst state of a node or target, according to the findings about its objects. */
function worst(live, objects) {
  const found = live.findings.filter((finding) => objects.includes(finding.object));
  if (found.some((finding) => finding.severity === "critical")) return "critical";
  return found.length ? "warning" : "good";
}

export function serviceTable(hasFilter = false) {
  return new Table("Services", [
    { title: "Service", href: (row) => `#/server/${row.id}`, text: (row) => row.name },
    { title: "State", text: (row) => row.word, cell: (row, cell) => state(cell, row.health, row.word) },
    ...figures, ...queues,
    { title: "Host CPU", wide: true, value: (row) => row.cpu_permille, cell: (row, cell) => meter(cell, row.cpu_permille / 1000, percent(row.cpu_permille / 1000), [0.9, 2]) },
    { title: "Host memory", wide: true, value: usedMemory, cell: (row, cell) => {
      const used = usedMemory(row);
      meter(cell, used, `${percent(used)} of ${bytes(row.memory_bytes)}`, [0.9, 0.97]);
    } },
  ], (row) => row.id, hasFilter);
}

/** Returns the objects whose problems are problems of a service: the service itself, and its targets. */
export function objectsOf(live, service) {
  const own = live.targets.filter((target) => target.node === service.id).map((target) => `t${target.id}`);
  return [`n${service.id}`, ...own, ...(service.kind === "management" ? ["management"] : [])];
}

export function serviceRows(live) {
  return live.services.map((service) => {
    const health = service.problem ? "critical" : worst(live, objectsOf(live, service));
    const word = service.problem ? "no reply" : health === "good" ? "serving" : health === "critical" ? "problem" : "attention";
    return { ...service, health, word };
  });
}

export function targetTable(hasFilter = false) {
  return new Table("Targets", [
    { title: "Target", href: (row) => `#/target/${row.id}`, text: (row) => `t${row.id}` },
    { title: "Kind", wide: true, text: (row) => row.kind },
    { title: "State", text: (row) => row.state, cell: (row, cell) => state(cell, row.health, row.state) },
    ...figures, ...queues,
    { title: "Used", value: usedSpace, cell: (row, cell) => {
      const used = usedSpace(row);
      meter(cell, used, `${percent(used)} of ${bytes(row.size_bytes)}`);
    } },
    { title: "Path", wide: true, text: (row) => row.path },
  ], (row) => row.id, hasFilter);
}

export function targetRows(live, node) {
  const own = live.targets.filter((target) => node === null || target.node === node);
  return own.map((target) => {
    const health = target.state === "serving" ? worst(live, [`t${target.id}`])
      : ["low", "read-only", "closed"].includes(target.state) ? "warning" : "critical";
    return { ...target, health };
  });
}

export const nameOf = (by, row) => {
  const id = row.id === "other" ? "all others" : row.id;
  if (by === "operation") return id.replaceAll("_", " ");
  return row.name && row.name !== row.id ? `${row.name} (${id})` : id;
};

export function causeTable(by, figuresShown = figures, hasFilter = false) {
  const titles = { client: "Client", user: "User", group: "Group", job: "Job", operation: "Operation" };
  return new Table(titles[by], [
    { title: titles[by], href: (row) => `#/load/${by}/${encodeURIComponent(row.id)}`, text: (row) => nameOf(by, row) },
    share(),
    ...figuresShown, ...(by === "operation" ? [errors] : []),
  ], (row) => `${row.id} ${row.service}`, hasFilter);
}

export function shares(rows) {
  const sum = rows.reduce((total, row) => total + row.busy_ns, 0);
  return rows.map((row) => ({ ...row, share: sum > 0 ? row.busy_ns / sum : 0 }));
}

/** A table of the slow operations of the last minutes, with the longest part of each. */
export function slowTable(hasFilter = false) {
  return new Table("Slow operations", [
    { title: "Operation", href: (row) => `#/operation/${encodeURIComponent(row.trace)}`, text: (row) => row.operation },
    number("Took", (row) => row.ms * 1000, micros),
    { title: "Mainly", text: (row) => row.mainly },
    { title: "Client", wide: true, text: (row) => row.client },
    { title: "User", wide: true, href: (row) => (row.user === null ? null : `#/load/user/${row.user}`),
      text: (row) => (row.user === null ? "" : row.user_name ? `${row.user_name} (${row.user})` : String(row.user)) },
    { title: "Ended", wide: true, value: (row) => row.ended_us, text: (row) => moment(row.ended_us / 1000, 600) },
  ], (row) => row.trace, hasFilter);
}

/** Returns the address of the view about the target of a row. Zero stands for the mount, or for a service without a target. */
export const targetOf = (row) => (row.target === 0 ? null : `#/target/${row.target}`);

/** A table of the phases in which requests spent their time in the last seconds. */
export function phaseTable() {
  return new Table("Where the time of requests goes", [
    { title: "Phase", href: (row) => `#/target/${row.target}`, text: (row) => row.what },
    share(),
    number("Each", (row) => row.each_ms * 1000, micros),
    knownTime("At its peers", (row) => row.peers_ms),
  ], (row) => `${row.target} ${row.stage}`);
}

/**
 * A panel with the phases of the requests that `parameters` choose, and with the rate of these requests. The
 * monitor has them for the last minutes only, so they are of this moment in each span.
 */
export function reasons(parameters) {
  const table = phaseTable(), note = h("p", { class: "quiet" }), missing = h("p", { class: "quiet", hidden: true });
  return {
    element: panel("Where the time went in the last minute", note, table.element, missing),
    query: () => parameters,
    update(report) {
      const speed = report.span_seconds > 0 ? report.requests / report.span_seconds : 0;
      setText(note, `${count(speed)} requests per second, ${micros(report.requests ? report.seconds / report.requests * 1e6 : null)} each.`);
      const text = missingText(report.unreachable);
      setText(missing, text);
      missing.hidden = text === "";
      table.nothing = text ? "The monitor has no record of a request in the last minute." : "No request was completed in the last minute.";
      table.update(report.phases);
    },
  };
}

/** Panels with the causes of the load of some targets in the last minute. */
export function targetCauses(targets, hasDirectories) {
  const table = (title, list, by) => {
    const made = new Table(title, [
      { title, href: (row) => (by && /^\d+$/.test(row.id) ? `#/load/${by}/${row.id}` : null),
        text: (row) => (by ? nameOf(by, row) : row.id === "other" ? "all others" : `entry id ${row.name}`) },
      { ...share(), title: by ? "Share of time" : "Share of requests" },
      number("Requests/s", (row) => row.requests_per_second, count),
    ], (row) => row.id);
    made.nothing = "Nothing in the last minute.";
    return { list, table: made, element: panel(`${title} of the last minute`, made.element) };
  };
  const tables = [table("Clients", "clients", "client"), table("Users", "users", "user"), table("Jobs", "jobs", "job")];
  if (hasDirectories) tables.push(table("Directories", "directories", null));
  return {
    element: h("div", { class: "two narrow" }, tables.map((it) => it.element)),
    query: () => (targets().length ? `targets=${targets().join(",")}` : null),
    update(found) { tables.forEach(({ list, table: shown }) => shown.update(found[list])); },
  };
}

/** A panel with the disks and the network interfaces of the host of a service. */
export function hostDevices(id) {
  const disks = new Table("Disks", [
    { title: "Disk", text: (row) => row.disk },
    number("Reads/s", (row) => row.reads_per_second, count),
    number("Writes/s", (row) => row.writes_per_second, count),
    number("Read", (row) => row.read_bytes_per_second, rate),
    number("Written", (row) => row.written_bytes_per_second, rate),
    { ...number("Each read", (row) => row.read_await_us, micros), wide: true },
    { ...number("Each write", (row) => row.write_await_us, micros), wide: true },
    { ...number("Queue", (row) => row.queue, count), wide: true },
    { title: "Busy", value: (row) => row.utilisation, cell: (row, cell) => meter(cell, row.utilisation, percent(row.utilisation), [2, 2]) },
  ], (row) => row.disk);
  const interfaces = new Table("Network interfaces", [
    { title: "Interface", text: (row) => row.interface },
    number("Received", (row) => row.received_bytes_per_second, rate),
    number("Sent", (row) => row.sent_bytes_per_second, rate),
    number("Errors/s", (row) => row.errors_per_second, count),
  ], (row) => row.interface);
  for (const table of [disks, interfaces]) table.nothing = "No figures yet: the service must reply twice first.";
  return {
    element: h("div", { class: "panels" }, panel("Disks of the host", disks.element), panel("Network of the host", interfaces.element)),
    query: () => `id=${encodeURIComponent(id)}`,
    update(found) {
      disks.update(found.disks);
      interfaces.update(found.interfaces);
    },
  };
}

/** A table of the background work, with its progress. */
export function workTable() {
  const left = (row) => (row.left === null ? "" : row.unit === "bytes" ? bytes(row.left) : `${count(row.left)} ${row.unit}`);
  return new Table("Background work", [
    { title: "Work", href: (row) => viewOf(row.object, []), text: (row) => row.what },
    { title: "Done", value: (row) => row.done / row.total, cell: (row, cell) => {
      const known = row.total > 0, share = known ? row.done / row.total : NaN;
      meter(cell, share, known ? percent(share) : "", [2, 2]);
    } },
    { title: "Left", number: true, value: (row) => row.left, text: left },
    { ...number("Rate", (row) => row.bytes_per_second, ifKnown(rate)), wide: true },
    number("Time left", (row) => row.seconds_left, ifKnown((seconds) => ago(seconds * 1000))),
    { title: "Waits because", text: (row) => row.problem },
  ], (row) => `${row.kind} ${row.what}`);
}
