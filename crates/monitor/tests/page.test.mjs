// Tests of the helpers of the monitor's page, which need no browser (../page/values.mjs):
// `node --test crates/monitor/tests/page.test.mjs`, which is a step of `cargo xtask ci`.

import assert from "node:assert/strict";
import test from "node:test";
import * as values from "../page/values.mjs";

/** Compares the results of a function with the expected ones, for pairs of argument and result. */
function check(convert, pairs) {
  for (const [value, expected] of pairs) {
    assert.equal(convert(value), expected, `${convert.name}(${value})`);
  }
}

test("bytes have binary units and at most three digits", () => {
  check(values.bytes, [
    [null, "-"], [undefined, "-"], [0, "0 B"], [1023, "1023 B"], [1024, "1.00 KiB"],
    [10 * 1024, "10.0 KiB"], [100 * 1024, "100 KiB"], [1.5 * 2 ** 30, "1.50 GiB"],
    [2 ** 60, "1.00 EiB"], [5000 * 2 ** 60, "5000 EiB"],
  ]);
  check(values.rate, [[null, "-"], [2 ** 20, "1.00 MiB/s"]]);
});

test("counts are short and never hide a small rate", () => {
  check(values.count, [
    [null, "-"], [0, "0"], [0.4, "0.4"], [3, "3"], [12.4, "12"], [9999, "9999"],
    [12345, "12.3 k"], [1234567, "1.23 M"], [98765432, "98.8 M"],
  ]);
});

test("times have the unit that makes their text short", () => {
  check(values.micros, [
    [null, "-"], [0, "-"], [999, "999 \u00b5s"], [1500, "1.50 ms"], [15000, "15.0 ms"],
    [2500000, "2.5 s"],
  ]);
  check(values.ago, [
    [-5000, "0 s"], [89000, "89 s"], [90000, "2 min"], [5400000, "2 h"], [3 * 86400000, "3 days"],
  ]);
});

test("precision of times on an axis depends on the chart's span", () => {
  const at = new Date(2026, 0, 5, 7, 8, 9).getTime();
  const text = (span) => values.moment(at, span);
  check(text, [[600, "07:08:09"], [3600, "07:08"], [172800, "07:08"], [2592000, "2026-01-05"]]);
});

test("time until storage is full is shown if it is known", () => {
  check(values.fullIn, [
    [null, ""], [undefined, ""], [400, ""], [0.5, ", full in about 12 h"], [12.4, ", full in about 12 days"],
  ]);
});

test("times are shown in the zone of the browser or in UTC", () => {
  const at = Date.UTC(2026, 0, 5, 23, 8, 9);
  check((minutes) => values.zone(minutes), [[120, "UTC+02:00"], [-210, "UTC-03:30"], [0, "UTC"], [330, "UTC+05:30"]]);
  values.showUtc(true);
  try {
    assert.equal(values.dateAndTime(at), "2026-01-05 23:08:09");
    assert.equal(values.zone(120), "UTC");
  } finally {
    values.showUtc(false);
  }
});

test("unknown shares are shown as a dash", () => {
  check(values.percent, [[0.256, "26 %"], [NaN, "-"], [Infinity, "-"], [undefined, "-"]]);
});

test("balance that cannot be judged is shown as its reason", () => {
  const known = { percent: 66.7, reason: null };
  const unknown = { percent: null, reason: "not enough data to judge" };
  check(values.balanceText, [
    [known, "67 % (100 % is even)"], [unknown, "not enough data to judge"],
    [{ percent: 0, reason: null }, "0 % (100 % is even)"],
  ]);
  const spread = { lowest: 0.25, mean: 0.5, highest: 0.75, balance: known };
  const words = "50 % on average, from 25 % to 75 %. Balance: 67 % (100 % is even).";
  assert.equal(values.spreadText(spread, values.percent), words);
});

test("failed requests have a reason in words", () => {
  check(values.reasonOf, [
    [{ name: "TimeoutError", message: "signal timed out" }, "the monitor does not reply"],
    [{ name: "NoConnection", message: "Failed to fetch" }, "the page cannot connect to the monitor"],
    [{ name: "Error", message: "x", status: 401 }, "the monitor needs the password again; reload the page"],
    [{ name: "Error", message: "unknown cluster\n", status: 400 }, "the monitor replied 400 unknown cluster"],
    [{ name: "Error", message: "", status: 503 }, "the monitor replied 503"],
    [{ name: "SyntaxError", message: "no JSON" }, "no JSON"],
  ]);
});

test("a report names the services whose requests it lacks", () => {
  check(values.missingText, [
    [undefined, ""], [[], ""],
    [["1 target, where 16 other users had more load; `skep why` shows these", "s1: no reply"],
      "Not included: 1 target, where 16 other users had more load; skep why shows these; s1: no reply."],
  ]);
});

test("error texts of the monitor are read from JSON and from plain text", () => {
  check(values.messageOf, [
    ['{"error":"unknown cluster"}', "unknown cluster"], ["no page\n", "no page\n"], ["", ""], ["{}", "{}"],
  ]);
});

test("statistics are late after some rounds without new ones", () => {
  check(values.isLate, [
    [{ now_ms: 20000, frame_ms: 11000, interval_ms: 1000 }, false],
    [{ now_ms: 20000, frame_ms: 9000, interval_ms: 1000 }, true],
    [{ now_ms: 90000, frame_ms: 31000, interval_ms: 60000 }, false],
    [{ now_ms: 300000, frame_ms: 31000, interval_ms: 60000 }, true],
    [{ now_ms: 20000, frame_ms: 0, interval_ms: 0 }, true],
  ]);
});

test("charts of long spans are requested less often than charts of short spans", () => {
  const times = [300, 3600, 86400, 31536000].map((seconds) => values.refreshMs(seconds, 300));
  assert.deepEqual(times, [900, 10800, 60000, 60000]);
});

test("exports of a view are its charts and lists, with the chosen span and cluster", () => {
  const rows = values.exportRows({
    charts: [{ title: "Throughput", queries: ["by=node&service=storage", "by=node&service=metadata"] }, { title: "Latency", queries: ["by=target&id=7&heat=1"] }],
    lists: [{ title: "Services", path: "/api/live?list=services" }, { title: "Load by user", path: "/api/load?by=user", hasSpan: true }, { title: "Reports", path: "/api/reports" }],
    window: "span=3600&until=1800000000", points: 300, cluster: "a&b",
  });
  assert.deepEqual(rows.map((row) => row.title), ["Throughput, storage", "Throughput, metadata", "Latency", "Services", "Load by user", "Reports"]);
  assert.deepEqual(rows[0].links.map(([format]) => format), ["csv", "xml", "json"]);
  assert.equal(rows[0].name, "skep-throughput-storage");
  assert.equal(rows[2].links[0][1], "/api/history?by=target&id=7&heat=1&points=300&span=3600&until=1800000000&cluster=a%26b&format=csv");
  assert.equal(rows[3].links[1][1], "/api/live?list=services&cluster=a%26b&format=xml");
  assert.equal(rows[4].links[2][1], "/api/load?by=user&span=3600&until=1800000000&cluster=a%26b&format=json");
  const [only] = values.exportRows({ charts: [], lists: [{ title: "Reports", path: "/api/reports" }], window: "span=300", points: 300, cluster: "" });
  assert.equal(only.links[0][1], "/api/reports?format=csv");
});

test("page title has the number of problems, or reports the lost contact", () => {
  const [own, following] = [{ cause: null }, { cause: { rule: "target-down", object: "t7" } }];
  assert.equal(values.titleOf("Overview", [], true), "Overview - Skep monitor");
  assert.equal(values.titleOf("Overview", [own, following, own], true), "(2) Overview - Skep monitor");
  assert.equal(values.titleOf("Overview", [own], false), "(no contact) Overview - Skep monitor");
});

test("hostile ids stay one parameter and one part of an address", () => {
  const ids = ["7", "a&by=node#x", "../../api", "<img src=x>", "100 %", "\u00fc\u2028\"'", "+ "];
  for (const id of ids) {
    const found = new URLSearchParams(`by=user${values.idOf(id)}`);
    assert.deepEqual([...found], [["by", "user"], ["id", id]]);
    assert.deepEqual(values.partsOf(`#/load/${encodeURIComponent(id)}`), ["load", id]);
  }
  assert.deepEqual(values.partsOf("#/load/%ff/x"), ["load", "", "x"]);
  assert.deepEqual(values.partsOf(""), [""]);
});

test("address of a view has a time span of the past", () => {
  const address = values.withWindow("#/target/7", 3600, 1800000000);
  assert.equal(address, "#/target/7?span=3600&until=1800000000");
  assert.deepEqual(values.windowOf(address), { span: 3600, until: 1800000000 });
  assert.deepEqual(values.partsOf(address), ["target", "7"]);
  assert.equal(values.withWindow("", 60, 5), "#/overview?span=60&until=5");
  const none = { span: null, until: null };
  for (const wrong of ["", "#/servers", "#/servers?span=-1&until=x", "#/servers?span=1e99&until=1.5", "#/?span=&until="]) {
    assert.deepEqual(values.windowOf(wrong), none, wrong);
  }
});

test("address in a notification names the cluster", () => {
  check(values.clusterOf, [["#/target/7?span=60&until=5&cluster=rack-2", "rack-2"], ["#/target/7", null], ["", null]]);
});

test("time span around an event has the event in its middle", () => {
  assert.deepEqual(values.windowAround(1000000, 1060000), { span: 3600, until: 2830 });
  assert.deepEqual(values.windowAround(0, 10000000), { span: 20000, until: 15000 });
});

test("problems link to the views about their objects", () => {
  const services = [{ id: 2 }, { id: 3 }];
  check((object) => values.viewOf(object, services), [
    ["t7", "#/target/7"], ["n2", "#/server/2"], ["n12", "#/load/client/12"], ["user 1000", "#/load/user/1000"],
    ["host 10.0.0.3", "#/servers"], ["management", "#/servers"], ["monitor", null], ["cluster", null],
    ["directory 5", null], ["t7/../x", null], ["", null], ["<b>", null],
  ]);
});

test("built-in property names of objects are no table entries", () => {
  const table = { servers: 1, none: 0 };
  check((name) => values.entryOf(table, name), [
    ["servers", 1], ["none", 0], ["", undefined], ["constructor", undefined], ["toString", undefined],
    ["__proto__", undefined], ["hasOwnProperty", undefined],
  ]);
});

test("clicks on a column title change the order of a table", () => {
  const first = values.nextOrder(undefined, 2, true);
  assert.deepEqual(first, { at: 2, isDescending: true });
  const second = values.nextOrder(first, 2, true);
  assert.deepEqual(second, { at: 2, isDescending: false });
  assert.equal(values.nextOrder(second, 2, true), undefined);
  assert.deepEqual(values.nextOrder(first, 0, false), { at: 0, isDescending: false });
});

test("tables sort rows by numbers or texts, and put rows without a value last", () => {
  const order = (rows, isDescending) => values.sorted(rows, (row) => row, isDescending);
  assert.deepEqual(order([5, null, 40, NaN, 9], true), [40, 9, 5, null, NaN]);
  assert.deepEqual(order([5, null, 40, 9], false), [5, 9, 40, null]);
  assert.deepEqual(order(["t10", "t9", "", "t1"], false), ["t1", "t9", "t10", ""]);
  assert.deepEqual(order(["a", "b"], true), ["b", "a"]);
  assert.deepEqual(order([], true), []);
});

test("place of the pointer on a chart is the index of a point", () => {
  const of = (hasCells) => [-0.5, 0, 0.5, 0.99, 1, 2].map((share) => values.indexAt(share, 11, hasCells));
  assert.deepEqual(of(false), [0, 0, 5, 10, 10, 10]);
  assert.deepEqual(of(true), [0, 0, 5, 10, 10, 10]);
  assert.equal(values.indexAt(0.5, 0, true), null);
  assert.equal(values.indexAt(0.26, 4, true), 1);
  assert.equal(values.indexAt(0.1, 4, false), 0);
});

test("difference of two columns is unknown where one value is missing", () => {
  assert.deepEqual(values.difference([10, null, 10, 10], [3, 3, null]), [7, null, null, null]);
  assert.deepEqual(values.difference(undefined, undefined), []);
  assert.deepEqual(values.difference([1], undefined), [null]);
});

test("a chart's scale ends at one to two times its highest value", () => {
  const factors = [0.97, 1, 1.01, 1.3, 2.5, 7, 9.9];
  for (const [base, step] of [[1000, 10], [1024, 16]]) {
    const powers = Array.from({ length: 15 }, (_, power) => step ** power);
    for (const value of powers.flatMap((power) => factors.map((factor) => power * factor))) {
      const top = values.ceiling(value, base);
      assert.ok(top >= value && top <= 2 * value, `${base}: ${top} for ${value}`);
    }
  }
  check((value) => values.ceiling(value, 1000), [[0, 1], [-1, 1], [NaN, 1], [7, 8], [1100, 1500]]);
  check((value) => values.ceiling(value, 1024), [[1000, 1024], [5 * 2 ** 20, 6 * 2 ** 20]]);
});
