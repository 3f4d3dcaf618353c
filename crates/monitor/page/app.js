// The start of the page. Chooses the view by the address, requests statistics from the monitor each
// second, and draws them.
import { h, setText } from "./format.js";
import { ago, bytes, entryOf, partsOf } from "./values.mjs";
import * as views from "./views.js";

const VIEWS = [["overview", "Overview"], ["servers", "Servers"], ["load/user", "Load"], ["latency", "Latency"], ["operations", "Operations"],
  ["alerts", "Alerts"], ["placement", "Placement"], ["work", "Background work"], ["reports", "Reports"]];
const SPANS = [[300, "5 minutes"], [3600, "1 hour"], [86400, "1 day"], [2592000, "30 days"], [31536000, "1 year"]];
const POINTS = 300;

const byId = (id) => document.getElementById(id);
const main = byId("main"), notice = byId("notice"), foot = byId("foot"), spans = byId("span"), clusters = byId("cluster");
let view = null, live = null, span = Number(recall("span")) || 300, dueCharts = 0;

function recall(name) { try { return localStorage.getItem(`skep-${name}`); } catch { return null; } }
function keep(name, value) { try { localStorage.setItem(`skep-${name}`, value); } catch { /* a private window */ } }

function open() {
  const [name, first, second] = partsOf(location.hash);
  const make = entryOf({
    servers: () => views.servers(), server: () => views.server(first), target: () => views.target(first),
    load: () => views.load(first, second), latency: () => views.latencies(),
    operations: () => views.operations(), operation: () => views.operation(first), alerts: () => views.alerts(),
    placement: () => views.placement(), work: () => views.work(),
    reports: () => views.reports(), report: () => views.report(first),
  }, name);
  view = make ? make() : views.overview();
  document.title = `${view.title} - Skep monitor`;
  main.replaceChildren(...view.elements);
  const listed = entryOf({ server: "servers", target: "servers", operation: "operations", report: "reports" }, name);
  const current = listed ?? (name || "overview");
  for (const link of byId("views").children) {
    const own = link.getAttribute("href").slice(2).split("/")[0] === current;
    if (own) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    // On a narrow screen, the list of views scrolls.
    if (own) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  dueCharts = 0;
  if (live?.services) view.update(live);
  refresh();
}

async function get(path) {
  const chosen = clusters.value ? `${path.includes("?") ? "&" : "?"}cluster=${encodeURIComponent(clusters.value)}` : "";
  const reply = await fetch(path + chosen, { headers: { Accept: "application/json" } });
  if (!reply.ok) throw new Error(`the monitor replied ${reply.status}`);
  return reply.json();
}

/** Requests the series for the charts of the view, each series only once, and draws the charts. */
async function refresh() {
  const shown = view;
  const queries = [...new Set(shown.charts.flatMap((chart) => chart.queries))];
  const found = new Map(await Promise.all(queries.map(async (query) =>
    [query, await get(`/api/history?${query}&span=${span}&points=${POINTS}`)])));
  if (shown.loads) shown.updateLoads((await get(`/api/load?by=${shown.loads}&span=${span}`)).rows);
  if (shown.operations) shown.updateOperations((await get(`/api/operations?span=600`)).operations);
  if (shown.operation) shown.updateOperation(await get(`/api/operation?id=${encodeURIComponent(shown.operation)}`).catch(() => null));
  if (shown.alerts) shown.updateAlerts(await get("/api/alerts"));
  if (shown.reports) shown.updateReports(await get("/api/reports"));
  if (shown !== view) return;
  for (const chart of shown.charts) chart.draw(chart.queries.map((query) => found.get(query)), span);
}

function redraw() {
  for (const chart of view?.charts ?? []) if (chart.last) chart.draw(...chart.last);
}

function problem(text) {
  notice.hidden = text === "";
  setText(notice, text);
}

async function tick() {
  try {
    live = await get("/api/live");
    if (!live.services) problem("The monitor has no cluster map yet: management does not reply.");
    else {
      const late = live.now_ms - live.frame_ms;
      problem(late > 10000 ? `The newest statistics are ${ago(late)} old.` : "");
      view.update(live);
      setText(foot, `Cluster ${live.cluster.slice(0, 13)} | map ${live.map_version} | Skep ${live.version} | statistics each ${(live.interval_ms / 1000).toFixed(1)} s | history ${bytes(live.history.bytes)} of ${bytes(live.history.max_bytes)}`);
    }
    // In a chart of a long span, each point covers minutes. So a request each second would return
    // nothing new.
    if (Date.now() >= dueCharts) {
      dueCharts = Date.now() + Math.min(60000, Math.max(900, (span / POINTS) * 500));
      await refresh();
    }
  } catch (error) {
    problem(`No statistics: ${error.message}. The page tries again each second.`);
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
byId("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep("theme", next);
  theme(next);
});

byId("views").append(...VIEWS.map(([path, title], index) =>
  h("a", { href: `#/${path}`, title: `Key ${index + 1}` }, title)));
spans.append(...SPANS.map(([seconds, title]) => h("option", { value: seconds, selected: seconds === span }, title)));
/** Fills the choice of the cluster, which is hidden if the monitor has only one. */
async function listClusters() {
  const found = (await (await fetch("/api/clusters")).json()).clusters;
  if (found.length < 2) return;
  const wanted = recall("cluster");
  clusters.replaceChildren(...found.map(({ name }) => h("option", { value: name, selected: name === wanted }, name)));
  clusters.hidden = false;
}
clusters.addEventListener("change", () => {
  keep("cluster", clusters.value);
  live = null;
  open();
});
spans.addEventListener("change", () => {
  span = Number(spans.value);
  keep("span", span);
  dueCharts = 0;
  refresh().catch(() => {});
});
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const chosen = VIEWS[Number(event.key) - 1];
  if (chosen) location.hash = `#/${chosen[0]}`;
});
window.addEventListener("hashchange", () => { open(); main.focus({ preventScroll: true }); });
window.addEventListener("resize", redraw);
listClusters().catch(() => {}).then(() => { open(); tick(); });
