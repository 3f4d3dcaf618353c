// The views of the page. Each returns its elements, its charts, and a function that updates the
// elements with the newest statistics.
import { h, setText, Table, meter } from "./format.js";
import { bytes, rate, count, micros, percent, moment, spreadText, difference, fullIn, idOf } from "./values.mjs";
import { LineChart, HeatMap } from "./charts.js";
import { endedList, findingList, follows } from "./findings.js";
import {
  panel, number, knownTime, usedSpace, share, figures, errors, serviceTable, objectsOf, serviceRows, targetTable, targetRows,
  nameOf, causeTable, shares, slowTable, targetOf, phaseTable, reasons, targetCauses, hostDevices, workTable,
} from "./tables.js";

const query = (by, more = "") => `by=${by}${more}`;

/** A list that the dialog of exports offers. With `hasSpan`, the list covers the chosen span. */
const listed = (title, path, hasSpan = false) => ({ title, path, hasSpan });

/** The lists of the causes of the load of some targets in the last minute. */
const listedCauses = (targets) => [
  listed("Clients of the last minute", `/api/causes?targets=${targets}&span=60&list=clients`),
  listed("Users of the last minute", `/api/causes?targets=${targets}&span=60&list=users`),
  listed("Jobs of the last minute", `/api/causes?targets=${targets}&span=60&list=jobs`),
  listed("Directories of the last minute", `/api/causes?targets=${targets}&span=60&list=directories`),
];

function throughput(by, more) {
  return new LineChart("Throughput", [query(by, more)], [
    { name: "read", column: "read_bytes" }, { name: "written", column: "written_bytes" },
  ], rate, 1024);
}

function rates(by, more) {
  return new LineChart("Operations per second", [query(by, more)], [
    { name: "operations", column: "operations" }, { name: "errors", column: "errors" },
  ], count);
}

function latency(by, more) {
  return new LineChart("Latency", [query(by, more)], [
    { name: "p50", column: "p50_us" }, { name: "p95", column: "p95_us" }, { name: "p99", column: "p99_us" },
  ], micros);
}

function waiting(by, more) {
  return new LineChart("Requests", [query(by, more)], [
    { name: "queued", column: "queued" }, { name: "busy", column: "busy" },
  ], count);
}

/** The used space and the size of targets over time. */
function space(title, more) {
  return new LineChart(title, [query("target", more)], [
    { name: "used", of: (result) => difference(result.size_bytes, result.free_bytes) }, { name: "size", column: "size_bytes" },
  ], bytes, 1024);
}

/** The CPU time and the memory of the host of a service over time. */
function hostCharts(id) {
  const of = query("node", idOf(id));
  return [
    new LineChart("CPU time of the host", [of], [
      { name: "used", of: (result) => (result.cpu_permille ?? []).map((value) => (value === null ? null : value / 1000)) },
    ], percent),
    new LineChart("Memory of the host", [of], [
      { name: "used", of: (result) => difference(result.memory_bytes, result.memory_free_bytes) }, { name: "size", column: "memory_bytes" },
    ], bytes, 1024),
  ];
}

function tile(name) {
  const value = h("div", { class: "value" }), note = h("div", { class: "note" });
  const element = h("div", { class: "tile" }, h("div", { class: "name" }, name), value, note);
  return { element, value, note, set(text, more = "") { setText(value, text); setText(note, more); } };
}

/** Shows a balance with the target that has the highest value, or the reason why the monitor cannot judge it. */
function showBalance(shown, balance, most) {
  const known = balance && balance.percent !== null;
  shown.set(known ? `${Math.round(balance.percent)} %` : "-", known ? most(balance.highest) : balance?.reason ?? "");
}

export function overview() {
  const tiles = { read: tile("Read"), written: tile("Written"), metadata: tile("Metadata operations"),
    storage: tile("Storage operations"), slow: tile("Slowest 1 %"), space: tile("Space"), work: tile("Balance of work"),
    filled: tile("Balance of space"), clients: tile("Clients") };
  const space = h("div");
  tiles.space.element.insertBefore(space, tiles.space.note);
  const health = h("span", { class: "pill" }, h("span", { class: "dot" }), h("span"));
  const findings = findingList(), services = serviceTable(), phases = phaseTable(), slow = slowTable();
  const work = workTable(), working = panel("Background work", work.element);
  const [users, clients] = ["user", "client"].map((by) => causeTable(by, figures.slice(0, 3)));
  const charts = [
    new LineChart("Throughput", [query("node", "&service=storage"), query("node", "&service=metadata")], [
      { name: "read", column: "read_bytes" }, { name: "written", column: "written_bytes" },
    ], rate, 1024),
    new LineChart("Operations per second", [query("node", "&service=metadata"), query("node", "&service=storage")], [
      { name: "metadata", column: "operations" }, { name: "storage", column: "operations", source: 1 },
    ], count),
  ];
  return {
    title: "Overview",
    elements: [
      h("div", { class: "head" }, h("h1", {}, "Cluster"), health),
      h("div", { class: "tiles" }, Object.values(tiles).map((it) => it.element)),
      h("div", { class: "two" }, charts.map((chart) => chart.element)),
      panel("Health", findings.element),
      working,
      panel("Where the time goes", phases.element),
      panel("Slowest operations of the last minutes", slow.element),
      panel("Services", services.element),
      h("div", { class: "two narrow" }, panel("Users by load", users.element), panel("Clients by load", clients.element)),
    ],
    charts,
    exports: () => [
      listed("Problems", "/api/live?list=findings"),
      listed("Background work", "/api/live?list=background"),
      listed("Where the time goes", "/api/live?list=phases"),
      listed("Slowest operations", "/api/live?list=slowest"),
      listed("Services", "/api/live?list=services"),
      listed("Users by load", "/api/live?list=top.user"),
      listed("Clients by load", "/api/live?list=top.client"),
    ],
    update(live) {
      const { metadata, storage } = live.totals;
      tiles.read.set(rate(storage.read_bytes_per_second + metadata.read_bytes_per_second));
      tiles.written.set(rate(storage.written_bytes_per_second + metadata.written_bytes_per_second));
      tiles.metadata.set(`${count(metadata.operations_per_second)}/s`, `mean ${micros(metadata.mean_us)}`);
      tiles.storage.set(`${count(storage.operations_per_second)}/s`, `mean ${micros(storage.mean_us)}`);
      tiles.slow.set(micros(Math.max(metadata.p99_us ?? 0, storage.p99_us ?? 0)), `metadata ${micros(metadata.p99_us)}, storage ${micros(storage.p99_us)}`);
      const used = live.capacity.size_bytes - live.capacity.free_bytes, share = used / live.capacity.size_bytes;
      setText(tiles.space.value, percent(share));
      meter(space, share, "");
      setText(tiles.space.note, `${bytes(used)} of ${bytes(live.capacity.size_bytes)}${fullIn(live.capacity.full_in_days)}`);
      showBalance(tiles.work, live.balance?.metadata_work, (it) => `t${it.target} gets ${Math.round(it.percent)} % of metadata requests`);
      showBalance(tiles.filled, live.balance?.storage_space, (it) => `t${it.target} is the fullest, ${Math.round(it.percent)} % used`);
      tiles.clients.set(String(live.clients), `${live.services.length} services, ${live.targets.length} targets`);
      const critical = live.findings.filter((finding) => finding.severity === "critical").length;
      const problems = live.findings.filter((finding) => !follows(finding)).length;
      health.className = `pill ${critical ? "critical" : problems ? "warning" : "good"}`;
      setText(health.lastChild, problems ? `${problems} problem${problems > 1 ? "s" : ""}` : "Healthy");
      findings.update(live);
      working.hidden = live.background.length === 0;
      work.update(live.background);
      phases.update(live.phases ?? []);
      slow.update(live.slowest ?? []);
      services.update(serviceRows(live));
      users.update(shares(live.top.user).slice(0, 6));
      clients.update(shares(live.top.client).slice(0, 6));
    },
  };
}

/** The placement on the targets of one kind: the figures of the balance, and a bar for each target. */
function placementPanel(kind) {
  const space = h("p"), files = h("p"), shared = h("p", { class: "quiet" });
  const table = new Table(`Placement on ${kind} targets`, [
    { title: "Target", href: (row) => `#/target/${row.id}`, text: (row) => `t${row.id}` },
    { title: "Service", wide: true, text: (row) => row.service },
    { title: "Used space", value: usedSpace, cell: (row, cell) => {
      const used = row.size_bytes - row.free_bytes, part = usedSpace(row);
      meter(cell, part, `${percent(part)}, ${bytes(used)} of ${bytes(row.size_bytes)}`);
    } },
    ...(kind === "storage" ? [{ title: "Files", value: (row) => row.files, cell: (row, cell) => meter(cell, row.files / row.most, count(row.files), [2, 2]) }] : []),
  ], (row) => row.id, true);
  return {
    element: panel(`${kind === "storage" ? "Storage" : "Metadata"} targets`, space, files, shared, h("div", { class: "bars" }, table.element)),
    update(live) {
      const found = live.placement.find((it) => it.kind === kind);
      const services = new Map(live.services.map((service) => [service.id, service.name]));
      const rows = live.targets.filter((target) => target.kind === kind);
      const most = Math.max(1, ...rows.map((row) => row.files ?? 0));
      const { used_share: used, files: counts } = found;
      setText(space, used ? `Used space: ${spreadText(used, percent)}` : "");
      setText(files, counts && kind === "storage" ? `Files on their file systems: ${spreadText(counts, count)}` : "");
      setText(shared, found.file_systems < found.targets ? `These ${found.targets} targets are on ${found.file_systems} file system${found.file_systems === 1 ? "" : "s"}. Targets on one file system share its space, so their figures are equal.` : "");
      table.update(rows.map((row) => ({ ...row, most, service: services.get(row.node) ?? "" })));
    },
  };
}

export function placement() {
  const panels = ["storage", "metadata"].map(placementPanel);
  const chart = space("Used space of all storage targets", "&service=storage");
  return {
    title: "Placement",
    elements: [h("h1", {}, "Placement"), chart.element, ...panels.map((it) => it.element)],
    charts: [chart],
    exports: () => [listed("Placement", "/api/live?list=placement"), listed("Targets", "/api/live?list=targets")],
    update(live) { panels.forEach((it) => it.update(live)); },
  };
}

export function work() {
  const table = workTable();
  table.nothing = "No background work is running or waiting.";
  const hint = h("p", { class: "quiet" }, "Members of metadata groups that catch up, chunk files of removed files, and the search for chunk files without an inode.");
  return {
    title: "Background work",
    elements: [h("h1", {}, "Background work"), hint, panel("Running and waiting", h("div", { class: "bars" }, table.element))],
    charts: [],
    exports: () => [listed("Background work", "/api/live?list=background")],
    update(live) { table.update(live.background); },
  };
}

/** The list of the reports of studies and benchmarks. */
export function reports() {
  const table = new Table("Reports", [
    { title: "Report", href: (row) => `#/report/${encodeURIComponent(row.path)}`, text: (row) => row.title },
    { title: "File", wide: true, text: (row) => row.path },
    { title: "Changed", value: (row) => row.modified_ms, text: (row) => `${moment(row.modified_ms, 1e9)} ${moment(row.modified_ms, 3600)}` },
    { ...number("Size", (row) => row.bytes, bytes), wide: true },
  ], (row) => row.path, true);
  const hint = h("p", { class: "quiet", hidden: true }, "Start the monitor with ", h("code", {}, "--reports DIR"),
    " to list the reports of ", h("code", {}, "skep study"), " and other pages of HTML or Markdown in a directory.");
  const more = h("p", { class: "quiet", hidden: true }, "The directory has more reports than the page lists.");
  table.nothing = "No report.";
  return {
    title: "Reports",
    elements: [h("h1", {}, "Reports"), hint, panel("The newest first", table.element, more)],
    charts: [],
    exports: () => [listed("Reports", "/api/reports")],
    reports: true,
    update() {},
    updateReports(found) {
      hint.hidden = found.is_configured;
      more.hidden = !found.has_more;
      table.update(found.reports);
    },
  };
}

/** One report, in a frame that runs no program. */
export function report(path) {
  const address = `/reports/${(path ?? "").split("/").map(encodeURIComponent).join("/")}`;
  return {
    title: "Report",
    elements: [
      h("div", { class: "crumbs" }, h("a", { href: "#/reports" }, "Reports"), " / ", path),
      h("div", { class: "head" }, h("h1", {}, "Report"), h("a", { href: address }, "Open the report alone")),
      h("iframe", { class: "report", sandbox: "", src: address, title: `Report ${path}` }),
    ],
    charts: [],
    update() {},
  };
}

export function servers() {
  const services = serviceTable(true), targets = targetTable(true);
  return {
    title: "Servers",
    elements: [h("h1", {}, "Servers"), panel("Services", services.element), panel("Targets", targets.element)],
    charts: [],
    exports: () => [listed("Services", "/api/live?list=services"), listed("Targets", "/api/live?list=targets")],
    update(live) {
      services.update(serviceRows(live));
      targets.update(targetRows(live, null));
    },
  };
}

/** A panel with the problems of one object. The panel is hidden while the object has no problems. */
function ownProblems(objects) {
  const list = findingList(objects), element = panel("Problems", list.element);
  element.hidden = true;
  return { element, update(live) { element.hidden = list.update(live) === 0; } };
}

export function server(id) {
  const title = h("h1"), note = h("span", { class: "quiet" }), targets = targetTable();
  const find = (live) => live.services.find((service) => String(service.id) === id);
  const problems = ownProblems((live) => { const found = find(live); return found ? objectsOf(live, found) : []; });
  const charts = [...[throughput, rates, latency, waiting].map((make) => make("node", idOf(id))), ...hostCharts(id)];
  let own = [];
  const causes = targetCauses(() => own, true), host = hostDevices(id);
  return {
    title: "Server",
    elements: [
      h("div", { class: "crumbs" }, h("a", { href: "#/servers" }, "Servers"), " / "),
      h("div", { class: "head" }, title, note), problems.element,
      h("div", { class: "two" }, charts.map((chart) => chart.element)),
      panel("Targets", targets.element), causes.element, host.element,
    ],
    charts,
    causes,
    host,
    exports: () => [
      listed("Targets of all servers", "/api/live?list=targets"),
      ...(own.length ? listedCauses(own.join(",")) : []),
      listed("Disks of the host", `/api/hosts?id=${encodeURIComponent(id)}&list=disks`),
      listed("Network of the host", `/api/hosts?id=${encodeURIComponent(id)}&list=interfaces`),
    ],
    update(live) {
      const found = find(live);
      own = live.targets.filter((it) => it.node === found?.id).map((it) => it.id);
      causes.element.hidden = own.length === 0;
      problems.update(live);
      setText(title, found?.name ?? "This service is not in the cluster.");
      setText(note, found ? `${found.kind}, ${found.addresses.join(", ")}, version ${found.version}${found.problem ? `, no reply: ${found.problem}` : ""}` : "");
      targets.update(targetRows(live, Number(id)));
    },
  };
}

export function target(id) {
  const title = h("h1", {}, `Target t${id}`), note = h("span", { class: "quiet" });
  const problems = ownProblems(() => [`t${id}`]);
  const crumb = h("a", { href: "#/servers" }, "Servers");
  const charts = [...[throughput, rates, latency, waiting].map((make) => make("target", idOf(id))), space("Space", idOf(id))];
  const heat = new HeatMap("Latency of all requests", query("target", idOf(id)));
  const syncs = new HeatMap("Syncs of the log", query("log-sync", idOf(id)));
  const sync = h("div", { hidden: true }, syncs.element);
  const why = reasons(`targets=${encodeURIComponent(id)}`), causes = targetCauses(() => [encodeURIComponent(id)], true);
  return {
    title: `Target t${id}`,
    elements: [
      h("div", { class: "crumbs" }, h("a", { href: "#/servers" }, "Servers"), " / ", crumb),
      h("div", { class: "head" }, title, note), problems.element,
      h("div", { class: "two" }, charts.map((chart) => chart.element)), why.element, causes.element, heat.element, sync,
    ],
    charts: [...charts, heat, syncs],
    why,
    causes,
    exports: () => [
      listed("Where the time went", `/api/why?targets=${encodeURIComponent(id)}&span=60&list=phases`),
      ...listedCauses(encodeURIComponent(id)),
    ],
    update(live) {
      problems.update(live);
      const found = live.targets.find((it) => String(it.id) === id);
      const owner = live.services.find((service) => service.id === found?.node);
      if (owner) { setText(crumb, owner.name); crumb.setAttribute("href", `#/server/${owner.id}`); }
      setText(note, found ? `${found.kind}, ${found.state}, ${bytes(found.free_bytes)} of ${bytes(found.size_bytes)} free, ${found.path}` : "This target is not in the cluster.");
      sync.hidden = found?.kind !== "metadata";
    },
  };
}

const CAUSES = ["client", "user", "group", "job", "operation"];

export function load(by, id) {
  const known = CAUSES.includes(by) ? by : "user";
  const choices = CAUSES.map((cause) => h("a", { href: `#/load/${cause}`, "aria-current": cause === known ? "true" : null }, `${cause}s`));
  const head = h("div", { class: "choices", role: "navigation", "aria-label": "Causes of load" }, choices);
  if (id !== undefined) {
    const charts = [throughput, rates].map((make) => make(known, idOf(id)));
    if (known === "operation") charts.push(new HeatMap("Latency", query(known, idOf(id))));
    const title = h("h1", {}, `${known} ${id}`);
    // The monitor explains the requests of a client, a user or a job.
    const why = ["client", "user", "job"].includes(known) && /^\d+$/.test(id) ? reasons(`${known}=${id}`) : null;
    return { title: `${known} ${id}`, elements: [head, title, h("div", { class: "two" }, charts.map((chart) => chart.element)), why?.element].filter(Boolean),
      charts, why,
      exports: () => (why ? [listed("Where the time went", `/api/why?${known}=${id}&span=60&list=phases`)] : []),
      update(live) {
        const found = live.top[known].find((row) => row.id === id);
        if (found) setText(title, nameOf(known, found));
      } };
  }
  const table = causeTable(known, figures, true);
  const hint = h("p", { class: "quiet", hidden: known !== "job" }, "Jobs are counted on mounts with the option job_accounting.");
  return {
    title: "Load",
    elements: [h("h1", {}, "Load by cause"), head, panel("Mean over the span", table.element, hint)],
    charts: [],
    exports: () => [listed(`Load by ${known}`, `/api/load?by=${known}`, true)],
    loads: known,
    update() {},
    updateLoads(rows) { table.update(shares(rows)); },
  };
}

export function latencies() {
  const charts = ["metadata", "storage"].map((service) =>
    new HeatMap(`${service === "metadata" ? "Metadata" : "Storage"} requests`, query("node", `&service=${service}`)));
  charts.push(new HeatMap("Syncs of the logs of metadata targets", query("log-sync")));
  const operations = new Table("Operations", [
    { title: "Operation", href: (row) => `#/load/operation/${encodeURIComponent(row.id)}`, text: (row) => nameOf("operation", row) },
    { title: "Service", text: (row) => row.service }, ...figures, errors,
    number("p50", (row) => row.p50_us, micros),
    number("p99", (row) => row.p99_us, micros),
  ], (row) => `${row.id} ${row.service}`, true);
  return {
    title: "Latency",
    elements: [h("h1", {}, "Latency"), ...charts.map((chart) => chart.element), panel("Operations", operations.element)],
    charts,
    exports: () => [listed("Operations", "/api/live?list=top.operation")],
    update(live) { operations.update(live.top.operation); },
  };
}

export function operations() {
  const table = slowTable(true);
  const hint = h("p", { class: "quiet" }, "Operations of the last ten minutes that took 100 ms or more, or 16 times as long as usual. ",
    h("code", {}, "skep trace"), " follows all operations on a path.");
  return {
    title: "Operations",
    elements: [h("h1", {}, "Slow operations"), hint, panel("The slowest first", table.element)],
    charts: [],
    exports: () => [listed("Slow operations", "/api/operations?span=600")],
    operations: true,
    update() {},
    updateOperations(rows) { table.update(rows); },
  };
}

/** The view that explains the time of one operation. */
export function operation(id) {
  const title = h("h1", {}, "Operation"), note = h("p", { class: "quiet" });
  const parts = new Table("Parts of the time", [
    { title: "Where", href: targetOf, text: (row) => row.what },
    share(),
    number("Time", (row) => row.ms * 1000, micros),
    knownTime("Usually", (row) => row.usual_ms),
  ], (row) => `${row.target} ${row.stage}`);
  const requests = new Table("Requests", [
    { title: "Request", text: (row) => row.request.replaceAll("_", " ") },
    { title: "To", href: targetOf, text: (row) => row.place },
    knownTime("After", (row) => row.begin_ms),
    number("Took", (row) => row.ms * 1000, micros),
    { title: "Result", wide: true, text: (row) => (row.is_failed ? "failed" : "") },
  ], (row) => row.key);
  return {
    title: "Operation",
    elements: [
      h("div", { class: "crumbs" }, h("a", { href: "#/operations" }, "Operations"), " / "),
      title, note, panel("Where the time of the operation went", parts.element), panel("Longest requests of the operation", requests.element),
    ],
    charts: [],
    exports: () => [
      listed("Where the time of the operation went", `/api/operation?id=${encodeURIComponent(id)}&list=parts`),
      listed("Longest requests of the operation", `/api/operation?id=${encodeURIComponent(id)}&list=requests`),
    ],
    operation: id,
    update() {},
    updateOperation(report) {
      if (!report) {
        setText(title, "Operation");
        setText(note, `The monitor has no record of operation ${id}. The monitor keeps the slowest operations of the last ten minutes.`);
        return;
      }
      setText(title, `${report.operation} took ${micros(report.ms * 1000)}${report.is_failed ? " and failed" : ""}`);
      const of = [report.client, report.user === null ? "" : `user ${report.user}`, report.inode && `entry ${report.inode}`].filter(Boolean);
      setText(note, `${of.join(", ")}; it ended at ${moment(report.ended_us / 1000, 600)}. Trace id ${report.trace}.`);
      parts.update(report.parts);
      requests.update(report.requests.map((row, at) => ({ ...row, key: String(at) })));
    },
  };
}

export function alerts() {
  const findings = findingList(), ended = endedList();
  let services = [];
  return {
    title: "Alerts",
    elements: [h("h1", {}, "Alerts"), panel("Now", findings.element), panel("Ended", ended.element)],
    charts: [],
    exports: () => [
      listed("Problems", "/api/live?list=findings"),
      listed("Alerts", "/api/alerts?list=holding"),
      listed("Alerts that have ended", "/api/alerts?list=ended"),
    ],
    alerts: true,
    update(live) {
      services = live.services;
      findings.update(live);
    },
    updateAlerts(found) { ended.update(found.ended, services); },
  };
}
