// The start of the page. Chooses the view by the address, requests statistics from the monitor each
// second, and shows these statistics.
import { h, setText } from "./format.js";
import { bytes, clusterOf, entryOf, exportRows, isLate, messageOf, moment, partsOf, reasonOf, refreshMs, showUtc, titleOf, zone } from "./values.mjs";
import { TimeSpan } from "./span.js";
import * as views from "./views.js";

const VIEWS = [["overview", "Overview"], ["servers", "Servers"], ["load/user", "Load"], ["latency", "Latency"], ["operations", "Operations"],
  ["alerts", "Alerts"], ["placement", "Placement"], ["work", "Background work"], ["reports", "Reports"]];
const KEYS = [["1 to 9", "choose a view"], ["[ and ]", "move the span to earlier or later times"], ["n", "let the span end now"],
  ["/", "filter a table"], ["e", "export the charts and lists of the view"], ["t", "change between light and dark"], ["Left, Right, Home, End", "in a chart: choose a moment"],
  ["Enter", "in a chart: show the time around the moment"], ["Esc", "in a chart: return to the newest moment"], ["?", "list the keys"]];
const POINTS = 300;
// Time after which a request has failed. Without a limit, the page would wait for minutes for a host
// that does not answer at all, and would show old figures as if these figures were new.
const PATIENCE_MS = 10000;
// Interval of requests about the causes of load, which cost the monitor more time than other requests.
const CAUSES_MS = 4000;
// Interval of requests for lists, such as the list of reports.
const LISTS_MS = 2000;

const byId = (id) => document.getElementById(id);
const main = byId("main"), notice = byId("notice"), foot = byId("foot"), clusters = byId("cluster");
let view = null, live = null;
// The time at which the page has lost the contact with the monitor, or null.
let lostMs = null;
let isUtc = recall("zone") === "utc";

function recall(name) { try { return localStorage.getItem(`skep-${name}`); } catch { return null; } }
function keep(name, value) { try { localStorage.setItem(`skep-${name}`, value); } catch { /* a private window */ } }

const time = new TimeSpan(Number(recall("span")) || 300, () => live?.now_ms ?? Date.now(), () => {
  if (time.isUsual) keep("span", time.seconds);
  refresh();
});

function open() {
  chooseCluster(clusterOf(location.hash));
  time.follow(location.hash);
  const [name, first, second] = partsOf(location.hash);
  const make = entryOf({
    servers: () => views.servers(), server: () => views.server(first), target: () => views.target(first),
    load: () => views.load(first, second), latency: () => views.latencies(),
    operations: () => views.operations(), operation: () => views.operation(first), alerts: () => views.alerts(),
    placement: () => views.placement(), work: () => views.work(),
    reports: () => views.reports(), report: () => views.report(first),
  }, name);
  view = make ? make() : views.overview();
  main.replaceChildren(...view.elements);
  showTitle();
  const listed = entryOf({ server: "servers", target: "servers", operation: "operations", report: "reports" }, name);
  const current = listed ?? (name || "overview");
  for (const link of byId("views").children) {
    const own = link.getAttribute("href").slice(2).split("/")[0] === current;
    if (own) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    // On a narrow screen, the list of views scrolls.
    if (own) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  if (live?.services) view.update(live);
  refresh();
}

function showTitle() {
  document.title = titleOf(view.title, live?.findings ?? [], lostMs === null);
}

async function get(path) {
  const chosen = clusters.value ? `${path.includes("?") ? "&" : "?"}cluster=${encodeURIComponent(clusters.value)}` : "";
  const options = { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE_MS) };
  const reply = await fetch(path + chosen, options).catch((error) => {
    const name = error.name === "TimeoutError" ? error.name : "NoConnection";
    throw Object.assign(new Error(error.message), { name });
  });
  if (!reply.ok) throw Object.assign(new Error(messageOf(await reply.text())), { status: reply.status });
  return reply.json();
}

/** Requests the parts of a view that are due and that the state of each second does not contain. */
async function update(shown) {
  await updateHistory(shown);
  await updateCauses(shown);
  if (Date.now() < (shown.listsDue ?? 0)) return;
  shown.listsDue = Date.now() + LISTS_MS;
  if (shown.operations) shown.updateOperations((await get(`/api/operations?span=600`)).operations);
  if (shown.operation) {
    const asked = get(`/api/operation?id=${encodeURIComponent(shown.operation)}`);
    shown.updateOperation(await asked.catch((error) => { if (error.status === 404) return null; throw error; }));
  }
  if (shown.alerts) shown.updateAlerts(await get("/api/alerts"));
  if (shown.reports) shown.updateReports(await get("/api/reports"));
}

/** Requests the parts of a view that show the chosen span. */
async function updateHistory(shown) {
  const { seconds, until, query: wanted } = time;
  if (shown.drawn === wanted && Date.now() < shown.historyDue) return;
  // A span of the past never changes, so the page requests its charts only once.
  shown.historyDue = until === null ? Date.now() + refreshMs(seconds, POINTS) : Infinity;
  const queries = [...new Set(shown.charts.flatMap((chart) => chart.queries))];
  const found = new Map(await Promise.all(queries.map(async (query) =>
    [query, await get(`/api/history?${query}&${wanted}&points=${POINTS}`)])));
  if (shown.loads) shown.updateLoads((await get(`/api/load?by=${shown.loads}&${wanted}`)).rows);
  // Drop the reply if the user has chosen another view or span in the meantime.
  if (shown !== view || wanted !== time.query) return;
  for (const chart of shown.charts) chart.draw(chart.queries.map((query) => found.get(query)), seconds);
  shown.drawn = wanted;
}

/** Requests the reasons for the time of requests, the causes of the load of targets, and the devices of a host. */
async function updateCauses(shown) {
  if (Date.now() < (shown.causesDue ?? 0)) return;
  for (const [part, path] of [[shown.why, "/api/why"], [shown.causes, "/api/causes"], [shown.host, "/api/hosts"]]) {
    const query = part?.query();
    if (!query) continue;
    shown.causesDue = Date.now() + CAUSES_MS;
    part.update(await get(`${path}?${query}&span=60`));
  }
}

/** Updates the charts and lists of the view. If this fails, the page shows the reason, and tries again. */
async function refresh() {
  const shown = view;
  // A key can change the span before the first view is open.
  if (!shown || shown.isUpdating || Date.now() < (shown.retryMs ?? 0)) return;
  shown.isUpdating = true;
  try {
    await update(shown);
    shown.problem = "";
  } catch (error) {
    shown.problem = `This view is not complete: ${reasonOf(error)}.`;
    Object.assign(shown, { historyDue: 0, causesDue: 0, listsDue: 0, retryMs: Date.now() + 2000 });
  }
  shown.isUpdating = false;
}

function redraw() {
  for (const chart of view?.charts ?? []) if (chart.last) chart.draw(...chart.last);
}

function problem(text) {
  notice.hidden = text === "";
  setText(notice, text);
}

/** Shows the newest statistics. */
function take(newest) {
  live = newest;
  lostMs = null;
  const isOld = Boolean(live.services) && isLate(live);
  main.classList.toggle("stale", isOld);
  if (!live.services) {
    problem("The monitor has no cluster map yet: management does not reply.");
  } else {
    problem(isOld ? `The newest statistics are from ${moment(live.frame_ms, 0)}.` : view.problem ?? "");
    view.update(live);
    setText(foot, `Cluster ${live.cluster.slice(0, 13)} | map ${live.map_version} | Skep ${live.version} | statistics each ${(live.interval_ms / 1000).toFixed(1)} s | history ${bytes(live.history.bytes)} of ${bytes(live.history.max_bytes)}`);
  }
  showTitle();
}

/**
 * Reports that the page has no contact with the monitor. The text does not change while this lasts,
 * because screen readers read each new text aloud.
 */
function lose(error) {
  lostMs ??= Date.now();
  main.classList.add("stale");
  const figures = live?.services ? " The figures below are from that time." : "";
  problem(`No statistics since ${moment(lostMs, 0)}: ${reasonOf(error)}.${figures} The page tries again each second.`);
  showTitle();
}

async function tick() {
  try {
    const asked = clusters.value, newest = await get("/api/live");
    // Drop the reply if the user has chosen another cluster in the meantime.
    if (asked === clusters.value) take(newest);
    refresh();
  } catch (error) {
    lose(error);
  }
  setTimeout(tick, document.hidden ? 5000 : 1000);
}

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  setText(byId("theme"), wanted === "dark" ? "Light" : "Dark");
  redraw();
}

const preferred = matchMedia("(prefers-color-scheme: dark)");
theme(recall("theme") ?? (preferred.matches ? "dark" : "light"));
preferred.addEventListener("change", () => { if (!recall("theme")) theme(preferred.matches ? "dark" : "light"); });
function switchTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep("theme", next);
  theme(next);
}
byId("theme").addEventListener("click", switchTheme);

/** Shows all times in UTC or in the time zone of the browser. */
function setZone(wanted) {
  isUtc = wanted;
  showUtc(isUtc);
  setText(byId("zone"), `Times in ${zone(-new Date().getTimezoneOffset())}`);
  time.show();
  redraw();
  if (!view) return;
  if (live?.services) view.update(live);
  // Request the lists again, because the times in the lists are texts.
  Object.assign(view, { listsDue: 0, retryMs: 0 });
  refresh();
}
setZone(isUtc);
byId("zone").addEventListener("click", () => {
  setZone(!isUtc);
  keep("zone", isUtc ? "utc" : "local");
});

byId("views").append(...VIEWS.map(([path, title], index) =>
  h("a", { href: `#/${path}`, title: `Key ${index + 1}` }, title)));
/** Fills the choice of the cluster, which is hidden if the monitor has only one. */
async function listClusters() {
  const found = (await get("/api/clusters")).clusters;
  if (found.length < 2) return;
  const wanted = recall("cluster");
  clusters.replaceChildren(...found.map(({ name }) => h("option", { value: name, selected: name === wanted }, name)));
  clusters.hidden = false;
}
/** Chooses the cluster that an address of a notification names. */
function chooseCluster(name) {
  if (!name || name === clusters.value || ![...clusters.options].some((it) => it.value === name)) return;
  clusters.value = name;
  keep("cluster", name);
  live = null;
}
clusters.addEventListener("change", () => {
  keep("cluster", clusters.value);
  live = null;
  open();
});
const help = byId("keys"), exports = byId("exports");
/** Lists the charts and lists of the view with links to them as files, for the chosen span. */
function showExports() {
  const lists = view?.exports?.() ?? [];
  const rows = exportRows({ charts: view?.charts ?? [], lists, window: time.query, points: POINTS, cluster: clusters.value });
  byId("export-list").replaceChildren(...rows.map(({ title, name, links }) => h("tr", {}, h("th", { scope: "row" }, title),
    links.map(([format, href]) => h("td", {}, h("a", { href, download: `${name}.${format}`, "aria-label": `${title} as ${format.toUpperCase()}` }, format.toUpperCase()))))));
  byId("no-exports").hidden = rows.length > 0;
  exports.showModal();
}
byId("export").addEventListener("click", showExports);
byId("exports-close").addEventListener("click", () => exports.close());
byId("key-list").append(...KEYS.map(([key, effect]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, effect))));
byId("help").addEventListener("click", () => help.showModal());
byId("keys-close").addEventListener("click", () => help.close());
// The address of the page names the view, so this link must not change it.
byId("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (typing || help.open || exports.open || event.ctrlKey || event.metaKey || event.altKey) return;
  const chosen = VIEWS[Number(event.key) - 1];
  if (chosen) location.hash = `#/${chosen[0]}`;
  if (event.key === "[") time.move(-1);
  if (event.key === "]") time.move(1);
  if (event.key === "n") time.set(time.seconds, null);
  if (event.key === "t") switchTheme();
  if (event.key === "e") showExports();
  if (event.key === "?") help.showModal();
  const field = event.key === "/" ? main.querySelector(".filter input") : null;
  if (field) {
    field.focus();
    event.preventDefault();
  }
});
main.addEventListener("choose", ({ detail }) => time.choose(detail.fromMs, detail.toMs));
window.addEventListener("hashchange", () => { open(); main.focus({ preventScroll: true }); });
window.addEventListener("resize", redraw);
listClusters().catch(() => {}).then(() => { open(); tick(); });
