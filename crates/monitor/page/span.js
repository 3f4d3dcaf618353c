// The time span of the charts and of the lists of load: its length, its end, and their controls.
import { h, setText } from "./format.js";
import { ago, dateAndTime, windowOf, withWindow } from "./values.mjs";

const SPANS = [[300, "5 minutes"], [3600, "1 hour"], [86400, "1 day"], [2592000, "30 days"], [31536000, "1 year"]];

// The shortest span that a part of a chart can have, in seconds.
const SHORTEST = 60;

const byId = (id) => document.getElementById(id);

export class TimeSpan {
  /**
   * `seconds` is the length of the span at first. `nowMs` returns the time of the monitor, and `changed` is
   * called after each change by the user.
   */
  constructor(seconds, nowMs, changed) {
    // `until` is the end of the span in seconds since 1970. Null means that the span ends now.
    Object.assign(this, { seconds, until: null, nowMs, changed });
    this.list = byId("span");
    this.list.addEventListener("change", () => this.set(Number(this.list.value), this.until));
    byId("earlier").addEventListener("click", () => this.move(-1));
    byId("later").addEventListener("click", () => this.move(1));
    byId("now").addEventListener("click", () => this.set(this.seconds, null));
    this.show();
  }

  /** The parameters of a request for this span. */
  get query() { return `span=${this.seconds}${this.until === null ? "" : `&until=${this.until}`}`; }

  /** Moves the span by half of its length: 1 to later times, -1 to earlier ones. */
  move(direction) {
    this.set(this.seconds, (this.until ?? this.now()) + direction * Math.ceil(this.seconds / 2));
  }

  /** Chooses a part of a chart. */
  choose(fromMs, toMs) {
    this.set(Math.max(SHORTEST, Math.ceil((toMs - fromMs) / 1000)), Math.ceil(toMs / 1000));
  }

  /** Takes the span from the address of a view, if the address has one. */
  follow(hash) {
    const { span, until } = windowOf(hash);
    this.seconds = span ?? this.seconds;
    this.until = this.past(until ?? this.until);
    this.show();
    this.writeAddress();
  }

  set(seconds, until) {
    Object.assign(this, { seconds, until: this.past(until) });
    this.show();
    this.writeAddress();
    this.changed();
  }

  /** Whether the user can choose the length of the span in the list. */
  get isUsual() { return SPANS.some(([seconds]) => seconds === this.seconds); }

  now() { return Math.floor(this.nowMs() / 1000); }

  /** Returns the end of a span, or null if it is not in the past. */
  past(until) { return until !== null && until < this.now() ? until : null; }

  show() {
    const choices = this.isUsual ? SPANS : [[this.seconds, ago(this.seconds * 1000)], ...SPANS];
    this.list.replaceChildren(...choices.map(([seconds, title]) =>
      h("option", { value: seconds, selected: seconds === this.seconds }, title)));
    byId("now").setAttribute("aria-pressed", String(this.until === null));
    const text = (seconds) => dateAndTime(seconds * 1000);
    const note = byId("window");
    note.hidden = this.until === null;
    setText(note, this.until === null ? "" : `Charts and lists of load show ${text(this.until - this.seconds)} to ${text(this.until)}. All other figures are of this moment.`);
  }

  /** Adds a span of the past to the address of the page, so that the address can be sent to others. */
  writeAddress() {
    const view = location.hash.split("?")[0];
    const wanted = this.until === null ? view : withWindow(view, this.seconds, this.until);
    if (wanted !== location.hash) history.replaceState(null, "", wanted || "#/overview");
  }
}
