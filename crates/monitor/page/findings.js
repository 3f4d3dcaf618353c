// The lists of problems: the current problems, and the alerts that have ended. Each problem links to the
// view about its object.
import { h, showLinked } from "./format.js";
import { ago, dateAndTime, viewOf, windowAround, withWindow } from "./values.mjs";

/** Converts a text to elements, with the words between backticks as code. */
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

/** Returns whether a problem follows from another problem, which lists it. */
export const follows = (finding) => finding.cause !== null;

/** Returns the name of a problem: its rule and its object. */
const nameOf = (finding) => `${finding.rule} ${finding.object}`;

/**
 * A list of problems that updates its entries in place, so that focus and selection are preserved.
 * An item has: key, kind (the class), what, href, time, timeHref, remedy, and consequences (items with what
 * and href). The addresses may be null.
 */
class ProblemList {
  constructor(label) {
    this.entries = new Map();
    this.element = h("ul", { class: "findings", "aria-label": label });
  }

  update(items) {
    const kept = new Set();
    items.forEach((item, index) => {
      kept.add(item.key);
      if (!this.entries.has(item.key)) this.entries.set(item.key, this.create());
      const entry = this.entries.get(item.key);
      this.show(entry, item);
      const at = this.element.children[index];
      if (at !== entry.row) this.element.insertBefore(entry.row, at ?? null);
    });
    for (const [key, { row }] of this.entries) {
      if (!kept.has(key)) { row.remove(); this.entries.delete(key); }
    }
  }

  create() {
    const [dot, what, time, remedy] = ["dot", "what", "time", "remedy"].map((name) => h("span", { class: name }));
    dot.setAttribute("role", "img");
    const consequences = h("ul", { class: "consequences", "aria-label": "What follows from this problem" });
    return { row: h("li", {}, dot, what, time, remedy, consequences), dot, what, time, remedy, consequences, shown: {} };
  }

  show(entry, { kind, what, href, time, timeHref, remedy, consequences }) {
    entry.row.className = kind;
    entry.dot.className = `dot ${kind}`;
    entry.dot.setAttribute("aria-label", kind === "over" ? "ended" : kind);
    showLinked(entry.what, what, href);
    showLinked(entry.time, time, timeHref);
    if (entry.shown.remedy !== remedy) entry.remedy.replaceChildren(...prose(remedy));
    const list = JSON.stringify(consequences);
    if (entry.shown.list !== list) {
      const parts = consequences.map((it) => h("li", {}, it.href ? h("a", { href: it.href }, it.what) : it.what));
      entry.consequences.replaceChildren(...parts);
      entry.consequences.hidden = parts.length === 0;
    }
    entry.shown = { remedy, list };
  }
}

const consequence = (services) => ({ what, object }) => ({ what, href: viewOf(object, services) });

/**
 * The current problems. With `objectsOf`, only the problems of the objects that it returns for the
 * newest statistics, also those that follow from other problems.
 */
export function findingList(objectsOf = null) {
  const list = new ProblemList("Problems");
  const none = h("p", { class: "empty" }, "No problems. The monitor checks services, targets, hosts, queues, latencies, clients and backups each second.");
  return { element: h("div", {}, list.element, none), update(live) {
    const objects = objectsOf?.(live), services = live.services ?? [];
    const isShown = (finding) => (objects ? objects.includes(finding.object) : !follows(finding));
    const items = live.findings.filter(isShown).map((finding) => {
      const lasts = live.now_ms - (finding.since_ms ?? live.now_ms);
      const cause = follows(finding) ? live.findings.find((it) => nameOf(it) === nameOf(finding.cause)) : null;
      const following = live.findings.filter((it) => follows(it) && nameOf(it.cause) === nameOf(finding));
      return {
        key: nameOf(finding), kind: finding.severity, what: finding.what,
        // In the view about the object, the problem needs no link to this view.
        href: objects ? null : viewOf(finding.object, services),
        time: lasts >= 1000 ? `for ${ago(lasts)}` : "just now", timeHref: null,
        remedy: cause ? `This problem follows from another problem: ${cause.what}` : finding.remedy,
        consequences: following.map(consequence(services)),
      };
    });
    list.update(items);
    none.hidden = items.length > 0;
    return items.length;
  } };
}

/** The alerts that have ended, the newest first. */
export function endedList() {
  const list = new ProblemList("Alerts that have ended");
  const none = h("p", { class: "empty" }, "No alert has ended yet.");
  return { element: h("div", {}, list.element, none), update(ended, services) {
    list.update(ended.map((alert) => {
      const href = viewOf(alert.object, services), { span, until } = windowAround(alert.since_ms, alert.ended_ms);
      return {
        key: `${nameOf(alert)} ${alert.since_ms} ${alert.ended_ms}`, kind: "over", what: alert.what, href,
        time: `${dateAndTime(alert.since_ms)}, for ${ago(alert.ended_ms - alert.since_ms)}`,
        // This link opens the charts of the time of the alert.
        timeHref: withWindow(href ?? "#/overview", span, until),
        remedy: alert.remedy, consequences: alert.consequences.map(consequence(services)),
      };
    }));
    none.hidden = ended.length > 0;
  } };
}
