// Opens every view of the monitor's page in headless Chromium, light and dark, at the width of a
// desktop and of a phone. Fails if axe finds an accessibility problem, if the page logs an error,
// or if a view is wider than the screen. Also fails if the page makes elements of texts that others
// have chosen, if it loads slowly, or if its keys, tables, charts and its report of a lost connection do
// not work. Shows the page of a large cluster with the option --tasks, and
// fails if the page does not react for too long.
//
//   npm install --prefix DIRECTORY axe-core puppeteer-core
//   node tools/page-audit.mjs [OPTIONS] DIRECTORY http://127.0.0.1:7480/ [PROGRAM OF CHROMIUM]
//
// Options:
//   --pictures DIRECTORY  only write pictures of the page to this directory, as PNG files
//   --tasks               only measure the longest tasks of the page, on a monitor of a large cluster

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  options: { pictures: { type: "string" }, tasks: { type: "boolean" } },
  allowPositionals: true,
});
const [directory, url, executablePath = "/usr/bin/chromium"] = positionals;
if (!directory || !url) {
  console.error("usage: node tools/page-audit.mjs [--pictures DIRECTORY | --tasks] DIRECTORY URL [CHROMIUM]");
  process.exit(2);
}
const require = createRequire(resolve(directory, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
// The keys that choose the views of the page.
const VIEWS = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
// The beginnings of the addresses of views about one object, each with a view that links to it.
const DETAILS = [
  ["#/server/", "#/servers"],
  ["#/target/", "#/servers"],
  ["#/load/user/", "#/load/user"],
  ["#/operation/", "#/operations"],
];
// Pauses that are longer than the page needs to show its first figures, and the figures of a view.
const [FIRST_MS, VIEW_MS] = [2500, 1500];
// Time limit for a link to an object. The monitor lists a slow operation some seconds after its end.
const LINK_MS = 60000;
// Time limit for an effect of a key or of a lost connection.
const USE_MS = 15000;
// Number of loads without a cache, and the duration that the project promises for each of them.
const [LOADS, LOAD_MS] = [20, 300];
// The views of a large cluster with the most rows, the seconds for which each is shown, and the
// longest task that a user does not notice as a delay of a key or a click (https://web.dev/articles/inp).
// Each of the views must have a row for each of this number of objects.
const [LARGE_VIEWS, SECONDS, TASK_MS, ROWS] = [["#/overview", "#/servers", "#/load/client"], 10, 200, 64];
// Factor by which a single load or task may exceed its limit on a busy machine. Half of the loads,
// and the longest tasks of half of the seconds, must be within the limit on any machine.
const MARGIN = 3;
// A text that becomes an element and runs a program if a page takes it for HTML.
const HOSTILE = `<b id="hostile"></b><img src="x:" onerror="window.hostile = 1">'"&`;
// The fields of the monitor's replies whose texts others can choose: names, hosts and paths.
const FOREIGN = new Set(["name", "host", "client", "domain", "object", "what", "remedy", "mainly", "service", "title"]);

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const problems = [];
let audits = 0;

/**
 * Opens the view of the first object that the view `list` links to, and waits for its figures.
 * Returns whether there is such an object. Records of operations stay only for some minutes, so
 * the links are read again for each page.
 */
async function openDetail(page, prefix, list) {
  await page.goto(url + list);
  const selector = `a[href^="${prefix}"]`;
  const link = await page.waitForSelector(selector, { timeout: LINK_MS }).catch(() => null);
  if (!link) {
    problems.push(`${list}: no link to a view ${prefix}`);
    return false;
  }
  await link.evaluate((element) => { location.hash = element.getAttribute("href"); });
  await pause(VIEW_MS);
  return true;
}

async function audit(page, place) {
  audits += 1;
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, impact, nodes } of found.violations) {
    problems.push(`${place}: ${id} (${impact}): ${nodes[0].html.slice(0, 200)}`);
  }
  const isTooWide = await page.evaluate(
    () => document.documentElement.scrollWidth > document.documentElement.clientWidth,
  );
  if (isTooWide) problems.push(`${place}: wider than the screen`);
}

/** Opens a page that reports its errors as problems. */
async function newPage(browser, place, width) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => problems.push(`${place}: ${error.message}`));
  page.on("console", (line) => {
    if (line.type() === "error") problems.push(`${place}: ${line.text()}`);
  });
  // The page's content security policy would refuse axe, because axe is not a part of the page. It
  // would also hide that the page makes an element of a text.
  await page.setBypassCSP(true);
  await page.setViewport({ width, height: 900 });
  return page;
}

async function auditViews(browser) {
  for (const scheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      const place = `${scheme}, ${width} pixels`;
      const page = await newPage(browser, place, width);
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.goto(url, { waitUntil: "load" });
      await pause(FIRST_MS);
      for (const view of VIEWS) {
        await page.keyboard.press(view);
        await pause(VIEW_MS);
        await audit(page, `${place}, view ${view}`);
      }
      for (const [prefix, list] of DETAILS) {
        if (await openDetail(page, prefix, list)) await audit(page, `${place}, view ${prefix}`);
      }
      await page.close();
    }
  }
}

/** Replaces the texts in a reply of the monitor that others can choose. */
function withHostileTexts(value, key) {
  if (typeof value === "string") return FOREIGN.has(key) ? HOSTILE : value;
  if (Array.isArray(value)) return value.map((item) => withHostileTexts(item, key));
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value);
  return Object.fromEntries(entries.map(([name, item]) => [name, withHostileTexts(item, name)]));
}

/** Shows all views with hostile texts in the place of names, hosts and paths. */
async function checkHostileTexts(browser) {
  const place = "hostile texts";
  const page = await newPage(browser, place, 1280);
  await page.setRequestInterception(true);
  page.on("request", async (request) => {
    if (!new URL(request.url()).pathname.startsWith("/api/")) return request.continue();
    try {
      const reply = await fetch(request.url());
      const text = await reply.text();
      const isJson = (reply.headers.get("content-type") ?? "").includes("json");
      const body = isJson ? JSON.stringify(withHostileTexts(JSON.parse(text), "")) : text;
      const contentType = reply.headers.get("content-type") ?? "text/plain";
      await request.respond({ status: reply.status, contentType, body });
    } catch (error) {
      problems.push(`${place}: ${request.url()}: ${error.message}`);
      await request.abort().catch(() => {});
    }
  });
  await page.goto(url, { waitUntil: "load" });
  await pause(FIRST_MS);
  let shown = 0;
  const check = async (view) => {
    const [isElement, hasRun, isText] = await page.evaluate(() => [
      document.getElementById("hostile") !== null || document.querySelector('img[src="x:"]') !== null,
      window.hostile !== undefined,
      document.documentElement.textContent.includes('<b id="hostile">'),
    ]);
    if (isElement || hasRun) problems.push(`${place}, view ${view}: the page made an element of a text`);
    if (isText) shown += 1;
  };
  for (const view of VIEWS) {
    await page.keyboard.press(view);
    await pause(VIEW_MS);
    await check(view);
  }
  for (const [prefix, list] of DETAILS) {
    if (await openDetail(page, prefix, list)) await check(prefix);
  }
  // Without this check, a page that shows none of the texts would pass.
  if (shown < VIEWS.length / 2) problems.push(`${place}: only ${shown} views show the texts`);
  await page.close();
}

/**
 * Uses the page as an administrator does: with keys, with the titles and the filter of a table, with a
 * chart, and while the monitor cannot be reached.
 */
async function checkUse(browser) {
  const page = await browser.newPage();
  // The conditions below are programs that are not a part of the page.
  await page.setBypassCSP(true);
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(`${url}#/servers`, { waitUntil: "load" });
  await pause(FIRST_MS);
  const expect = async (what, condition) => {
    const isMet = await page.waitForFunction(condition, { timeout: USE_MS }).then(() => true, () => false);
    if (!isMet) problems.push(`use of the page: ${what}`);
  };
  await page.keyboard.press("?");
  await expect("the key ? lists the keys", () => document.getElementById("keys").open);
  await page.keyboard.press("Escape");
  await expect("Esc closes the list of keys", () => !document.getElementById("keys").open);
  await page.evaluate(() => document.querySelector("main th .sort").click());
  await expect("a title sorts its table", () => document.querySelector("main th[aria-sort]") !== null);
  await page.keyboard.press("/");
  await page.keyboard.type("no such row");
  await expect("the filter hides all rows", () => {
    const [empty] = document.querySelectorAll("main .empty");
    return !empty.hidden && empty.textContent.includes("no such row");
  });
  for (let letter = 0; letter < "no such row".length; letter += 1) await page.keyboard.press("Backspace");
  await expect("an empty filter shows the rows", () => document.querySelector("main .empty").hidden);
  await page.goto(`${url}#/latency`);
  await pause(VIEW_MS);
  await page.evaluate(() => document.querySelector("main canvas").focus());
  await page.keyboard.press("ArrowLeft");
  await expect("an arrow key chooses a moment in a chart", () => document.querySelector("main .when").textContent !== "");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("[");
  await expect("the key [ shows an earlier time", () => location.hash.includes("until="));
  await page.keyboard.press("n");
  await expect("the key n returns to now", () => !location.hash.includes("until="));
  await page.setOfflineMode(true);
  await expect("the page shows that it has no contact", () => (
    document.getElementById("notice").textContent.startsWith("No statistics since")
      && document.getElementById("main").classList.contains("stale")
      && document.title.startsWith("(no contact)")));
  await page.setOfflineMode(false);
  await expect("the page shows that the contact is back", () => !document.getElementById("main").classList.contains("stale"));
  await page.close();
}

/** Prints the median and the longest of some times. Adds a problem if they are above the limit. */
function judge(what, times, limit) {
  times.sort((one, other) => one - other);
  const [median, worst] = [times[Math.floor(times.length / 2)], times[times.length - 1]];
  const verdict = worst <= limit ? "within" : "above";
  console.log(`${times.length} ${what}: median ${median} ms, worst ${worst} ms, ${verdict} ${limit} ms`);
  if (median > limit) problems.push(`${what}: half of them took ${median} ms or more`);
  if (worst > limit * MARGIN) problems.push(`${what}: one of them took ${worst} ms`);
}

/** Loads the page without a cache, again and again. */
async function measureLoads(browser) {
  const times = [];
  for (let load = 0; load < LOADS; load += 1) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    await page.setCacheEnabled(false);
    await page.goto(url, { waitUntil: "load" });
    times.push(await page.evaluate(() => {
      const { loadEventStart, navigationStart } = performance.timing;
      return loadEventStart - navigationStart;
    }));
    await context.close();
  }
  judge("loads", times, LOAD_MS);
}

/**
 * Opens each of the views with the most rows, and measures the longest task of each second. The
 * browser reports only tasks of more than 50 ms, and the longest task of all other seconds counts
 * as 0 ms. During a task, the page does not react to the user.
 */
async function measureTasks(browser) {
  for (const view of LARGE_VIEWS) {
    const page = await newPage(browser, view, 1280);
    await page.evaluateOnNewDocument(() => {
      window.tasks = [];
      new PerformanceObserver((list) => {
        window.tasks.push(...list.getEntries().map((task) => [task.startTime, task.duration]));
      }).observe({ type: "longtask", buffered: true });
    });
    await page.goto(url + view, { waitUntil: "load" });
    await pause(SECONDS * 1000);
    const [rows, tasks] = await page.evaluate(() => [document.querySelectorAll("main tbody tr").length, window.tasks]);
    if (rows < ROWS) problems.push(`${view}: only ${rows} rows`);
    const longest = Array.from({ length: SECONDS }, (_, second) => {
      const own = tasks.filter(([start]) => Math.floor(start / 1000) === second);
      return Math.round(Math.max(0, ...own.map(([, duration]) => duration)));
    });
    judge(`seconds of ${view} with ${rows} rows, by the longest task of each`, longest, TASK_MS);
    await page.close();
  }
}

async function takePictures(browser, place) {
  mkdirSync(place, { recursive: true });
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  for (const [name, view] of [["overview", "#/overview"], ["operations", "#/operations"]]) {
    await page.goto(url + view, { waitUntil: "load" });
    await pause(FIRST_MS);
    const path = join(place, `monitor-${name}.png`);
    await page.screenshot({ path });
    console.log(`wrote ${path}`);
  }
  await page.close();
}

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
try {
  if (values.pictures) {
    await takePictures(browser, values.pictures);
  } else if (values.tasks) {
    await measureTasks(browser);
  } else {
    await measureLoads(browser);
    await auditViews(browser);
    await checkHostileTexts(browser);
    await checkUse(browser);
  }
} finally {
  await browser.close();
}
problems.forEach((problem) => console.error(problem));
if (!values.pictures) {
  const views = values.tasks ? LARGE_VIEWS.length : audits;
  console.log(problems.length ? `${problems.length} problems` : `no problem in ${views} views`);
}
process.exit(problems.length ? 1 : 0);
