// Opens every view of the monitor's page in headless Chromium, light and dark, at the width of a
// desktop and of a phone. Fails if axe finds an accessibility problem, if the page logs an error,
// or if a view is wider than the screen.
//
//   npm install --prefix DIRECTORY axe-core puppeteer-core
//   node tools/page-audit.mjs DIRECTORY http://127.0.0.1:7480/ [PROGRAM OF CHROMIUM]

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [directory, url, executablePath = "/usr/bin/chromium"] = process.argv.slice(2);
if (!directory || !url) {
  console.error("usage: node tools/page-audit.mjs DIRECTORY URL [PROGRAM OF CHROMIUM]");
  process.exit(2);
}
const require = createRequire(resolve(directory, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
// The keys that choose the views of the page.
const VIEWS = ["1", "2", "3", "4", "5", "6"];
// Pauses that are longer than the page needs to show its first figures, and the figures of a view.
const [FIRST_MS, VIEW_MS] = [2500, 1500];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const problems = [];

async function audit(page, place) {
  for (const view of VIEWS) {
    await page.keyboard.press(view);
    await pause(VIEW_MS);
    await page.evaluate(axe);
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const { id, impact, nodes } of found.violations) {
      problems.push(`${place}, view ${view}: ${id} (${impact}): ${nodes[0].html.slice(0, 200)}`);
    }
    const isTooWide = await page.evaluate(
      () => document.documentElement.scrollWidth > document.documentElement.clientWidth,
    );
    if (isTooWide) problems.push(`${place}, view ${view}: wider than the screen`);
  }
}

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
try {
  for (const scheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      const page = await browser.newPage();
      const place = `${scheme}, ${width} pixels`;
      page.on("pageerror", (error) => problems.push(`${place}: ${error.message}`));
      page.on("console", (line) => {
        if (line.type() === "error") problems.push(`${place}: ${line.text()}`);
      });
      // The page's content security policy would refuse axe, because axe is not a part of the page.
      await page.setBypassCSP(true);
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.goto(url, { waitUntil: "load" });
      await pause(FIRST_MS);
      await audit(page, place);
      await page.close();
    }
  }
} finally {
  await browser.close();
}
problems.forEach((problem) => console.error(problem));
console.log(problems.length ? `${problems.length} problems` : "no problem in 24 views");
process.exit(problems.length ? 1 : 0);
